package phalanx.bridge;

import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A table that is loaded by its path: builds its scans and writes. */
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
        // Metadata tables and change feeds take no conditions.
        boolean isTable =
                !options.containsKey("metadata_table")
                        && !"true".equalsIgnoreCase(options.get("changes"));
        CaseInsensitiveStringMap own = Hints.remove(options);
        return isTable
                ? new TableScanBuilder(
                        source, schema, own, Hints.of(options), new StructType(), null)
                : new ColumnScan.ColumnScanBuilder(source, schema, own, new StructType());
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
        CatalogSettings.checkNotInternal(info.options());
        return new RowWrite.RowWriteBuilder(source, info, new Reads(null));
    }
}
