package phalanx.bridge;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.execution.datasources.v2.python.PythonBatch;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceCreationResult;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceReadInfo;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonPartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Some;
import scala.jdk.javaapi.CollectionConverters;

/** Reads all rows of the columns that a query needs, as Arrow columns. */
final class ColumnScan extends PythonScan {
    private final Source source;
    private final StructType schema;
    private final StructType columns;
    private final CaseInsensitiveStringMap options;
    // Pickled work that is run instead of reading a table; null for a table.
    private final byte[] work;
    private Batch batch;
    private boolean streams;

    private ColumnScan(
            Source source,
            StructType schema,
            StructType columns,
            CaseInsensitiveStringMap options,
            byte[] work) {
        super(source, Source.NAME, columns, options, new Filter[0]);
        this.source = source;
        this.schema = schema;
        this.columns = columns;
        this.options = options;
        this.work = work;
    }

    @Override
    public ColumnarSupportMode columnarSupportMode() {
        return streams ? ColumnarSupportMode.UNSUPPORTED : ColumnarSupportMode.SUPPORTED;
    }

    /** Streams use Spark's own reader. */
    @Override
    public MicroBatchStream toMicroBatchStream(String checkpoint) {
        streams = true;
        return super.toMicroBatchStream(checkpoint);
    }

    /** The path of the table, if its newest state is read; else null. */
    String path() {
        boolean isPastSnapshot =
                options.containsKey("snapshot") || options.containsKey("to_snapshot");
        return isPastSnapshot ? null : options.get("path");
    }

    /** Plans once, however often Spark asks. */
    @Override
    public synchronized Batch toBatch() {
        if (batch == null) {
            PythonDataSourceReadInfo plan = work == null ? readInfo() : workInfo();
            batch = new ColumnBatch(Source.ofPlan(plan), Source.NAME, columns, options);
        }
        return batch;
    }

    private PythonDataSourceReadInfo readInfo() {
        PythonDataSourceCreationResult created =
                source.getOrCreateDataSourceInPython(Source.NAME, options, new Some<>(schema));
        return source.source().createReadInfoInPython(created, columns, false);
    }

    private PythonDataSourceReadInfo workInfo() {
        JsonNode planned = Planner.planWork(source, work, columns, TableScan.batchRows());
        List<byte[]> tasks = new ArrayList<>();
        for (JsonNode task : planned.get("tasks")) {
            tasks.add(Base64.getDecoder().decode(task.asText()));
        }
        return new PythonDataSourceReadInfo(
                Base64.getDecoder().decode(planned.get("function").asText()),
                CollectionConverters.asScala(tasks).toSeq());
    }

    /** Collects the columns that a query needs. */
    static class ColumnScanBuilder implements ScanBuilder, SupportsPushDownRequiredColumns {
        final Source source;
        final StructType schema;
        final CaseInsensitiveStringMap options;
        // Columns that are read only if the query names them.
        final StructType hidden;
        private final byte[] work;
        StructType columns;

        ColumnScanBuilder(
                Source source,
                StructType schema,
                CaseInsensitiveStringMap options,
                StructType hidden) {
            this(source, schema, options, hidden, null);
        }

        ColumnScanBuilder(
                Source source,
                StructType schema,
                CaseInsensitiveStringMap options,
                StructType hidden,
                byte[] work) {
            this.work = work;
            this.source = source;
            this.schema = schema;
            this.options = options;
            this.hidden = hidden;
            this.columns = schema;
        }

        @Override
        public void pruneColumns(StructType required) {
            StructField[] kept = required.fields().clone();
            for (int i = 0; i < kept.length; i++) {
                // A struct is read whole, even if the query needs one field of it.
                String name = kept[i].name();
                boolean isHidden = !hidden.isEmpty() && hidden.getFieldIndex(name).isDefined();
                kept[i] = (isHidden ? hidden : schema).apply(name);
            }
            columns = new StructType(kept.length > 0 ? kept : narrowest());
        }

        /** One column is read even for a count: without columns there are no rows. */
        private StructField[] narrowest() {
            StructField found = null;
            for (StructField field : schema.fields()) {
                if (found == null
                        || field.dataType().defaultSize() < found.dataType().defaultSize()) {
                    found = field;
                }
            }
            return found == null ? new StructField[0] : new StructField[] {found};
        }

        @Override
        public Scan build() {
            return new ColumnScan(source, schema, columns, options, work);
        }
    }

    /** Spark's tasks of a Python data source, with columnar readers. */
    static final class ColumnBatch extends PythonBatch {
        ColumnBatch(
                PythonDataSourceV2 source,
                String name,
                StructType columns,
                CaseInsensitiveStringMap options) {
            super(source, name, columns, options);
        }

        @Override
        public PartitionReaderFactory createReaderFactory() {
            return new ColumnReaderFactory(
                    (PythonPartitionReaderFactory) super.createReaderFactory());
        }
    }
}
