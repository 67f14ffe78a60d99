package phalanx.bridge;

import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A table as Spark sees it: who reads it and who writes to it. */
final class BridgedTable extends PythonTable {
    private final Source source;
    private final StructType schema;

    BridgedTable(Source source, StructType schema) {
        super(source, Source.NAME, schema);
        this.source = source;
        this.schema = schema;
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        CatalogSettings.checkNotInternal(options);
        return scanBuilder(source, schema, options);
    }

    static ScanBuilder scanBuilder(
            Source source, StructType schema, CaseInsensitiveStringMap options) {
        // What is told of a table has no conditions.
        boolean isTable =
                !options.containsKey("metadata_table")
                        && !"true".equalsIgnoreCase(options.get("changes"));
        CaseInsensitiveStringMap own = Hints.without(options);
        return isTable
                ? new TableScanBuilder(
                        source, schema, own, Hints.of(options), new StructType(), null)
                : new ColumnScan.Builder(source, schema, own, new StructType());
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
        CatalogSettings.checkNotInternal(info.options());
        return new RowWrite.Builder(source, info, new Reads(null));
    }
}
