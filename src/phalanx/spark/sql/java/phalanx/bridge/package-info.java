/**
 * What only the JVM can tell Spark: an SQL catalog, pushdown, partitioning, and changes of rows.
 *
 * <p>All planning and all I/O stay in Python. The classes are one package, because they use each
 * other's package-private members and Spark needs only five of them by name. Begin with {@link
 * phalanx.bridge.Catalog} for SQL and {@link phalanx.bridge.Source} for {@code format("phalanx")};
 * both ask {@code Planner}. docs/BRIDGE.md specifies its questions and answers.
 *
 * <table>
 * <caption>The classes by what they are for</caption>
 * <tr><td>catalog</td><td>Catalog, CatalogSettings, CatalogTable, WritableTable, RowLevelTable,
 *     Transforms</td></tr>
 * <tr><td>by path</td><td>Source, BridgedTable</td></tr>
 * <tr><td>scans</td><td>TableScanBuilder, TableScan, TableBatch, ColumnScan, AnsweredScan, Hints,
 *     ExpressionTree</td></tr>
 * <tr><td>writes</td><td>CatalogWrite, RowWrite, RowWriterFactory, RowBatches</td></tr>
 * <tr><td>changes of rows</td><td>RowChanges, RowChangeWrite, RowChangeWriterFactory, Reads</td></tr>
 * <tr><td>functions of transforms</td><td>Functions, Bucket, CalendarPart, CalendarChain</td></tr>
 * <tr><td>rules of the session</td><td>Extensions, SourceKeys</td></tr>
 * <tr><td>Python</td><td>Planner, PythonTask, ColumnReaderFactory, DirectColumn, WorkFrames, Values,
 *     InvalidRequest</td></tr>
 * </table>
 */
package phalanx.bridge;
