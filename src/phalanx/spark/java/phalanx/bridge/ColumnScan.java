package phalanx.bridge;

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

/** Reads the columns that a query needs, all of their rows, and hands them on as columns. */
final class ColumnScan extends PythonScan {
    private final Source source;
    private final StructType schema;
    private final StructType columns;
    private final CaseInsensitiveStringMap options;
    private Batch batch;
    private boolean streams;

    private ColumnScan(
            Source source,
            StructType schema,
            StructType columns,
            CaseInsensitiveStringMap options) {
        super(source, Source.NAME, columns, options, new Filter[0]);
        this.source = source;
        this.schema = schema;
        this.columns = columns;
        this.options = options;
    }

    @Override
    public ColumnarSupportMode columnarSupportMode() {
        return streams ? ColumnarSupportMode.UNSUPPORTED : ColumnarSupportMode.SUPPORTED;
    }

    /** Streams are read as Spark does it. */
    @Override
    public MicroBatchStream toMicroBatchStream(String checkpoint) {
        streams = true;
        return super.toMicroBatchStream(checkpoint);
    }

    /** Planned once, however often Spark asks. */
    @Override
    public synchronized Batch toBatch() {
        if (batch == null) {
            PythonDataSourceCreationResult made =
                    source.getOrCreateDataSourceInPython(
                            Source.NAME, options, new Some<>(schema));
            PythonDataSourceReadInfo plan =
                    source.source().createReadInfoInPython(made, columns, false);
            batch = new ColumnBatch(Source.planned(plan), Source.NAME, columns, options);
        }
        return batch;
    }

    /** Learns which columns a query needs. */
    static class Builder implements ScanBuilder, SupportsPushDownRequiredColumns {
        final Source source;
        final StructType schema;
        final CaseInsensitiveStringMap options;
        // Columns that are there for who names them.
        final StructType hidden;
        StructType columns;

        Builder(
                Source source,
                StructType schema,
                CaseInsensitiveStringMap options,
                StructType hidden) {
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
                // A struct comes whole, also where the query needs a part of it.
                String name = kept[i].name();
                boolean isHidden = !hidden.isEmpty() && hidden.getFieldIndex(name).isDefined();
                kept[i] = (isHidden ? hidden : schema).apply(name);
            }
            columns = new StructType(kept.length > 0 ? kept : narrowest());
        }

        /** Rows are counted by a column: without any there would be none. */
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
            return new ColumnScan(source, schema, columns, options);
        }
    }

    /** Spark's tasks of a source in Python, which hand on columns. */
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
