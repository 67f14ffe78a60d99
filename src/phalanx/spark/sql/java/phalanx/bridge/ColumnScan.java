package phalanx.bridge;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
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

/** Reads the columns that a query needs, all of their rows, and hands them on as columns. */
final class ColumnScan extends PythonScan {
    private final Source source;
    private final StructType schema;
    private final StructType columns;
    private final CaseInsensitiveStringMap options;
    // What is read instead of a table; null if a table is.
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

    /** Streams are read as Spark does it. */
    @Override
    public MicroBatchStream toMicroBatchStream(String checkpoint) {
        streams = true;
        return super.toMicroBatchStream(checkpoint);
    }

    /** Where the table is whose newest state is read; null if none is. */
    String path() {
        boolean isOfThePast =
                options.containsKey("snapshot") || options.containsKey("to_snapshot");
        return isOfThePast ? null : options.get("path");
    }

    /** Planned once, however often Spark asks. */
    @Override
    public synchronized Batch toBatch() {
        if (batch == null) {
            PythonDataSourceReadInfo plan = work == null ? readInfo() : workInfo();
            batch = new ColumnBatch(Source.planned(plan), Source.NAME, columns, options);
        }
        return batch;
    }

    private PythonDataSourceReadInfo readInfo() {
        PythonDataSourceCreationResult made =
                source.getOrCreateDataSourceInPython(Source.NAME, options, new Some<>(schema));
        return source.source().createReadInfoInPython(made, columns, false);
    }

    private PythonDataSourceReadInfo workInfo() {
        ObjectNode question = Planner.JSON.createObjectNode();
        question.put("work", Base64.getEncoder().encodeToString(work));
        question.put("schema", columns.json());
        question.put("batch_rows", TableScan.batchRows());
        JsonNode planned = Planner.ask(source.source().dataSourceCls(), question);
        List<byte[]> tasks = new ArrayList<>();
        for (JsonNode task : planned.get("tasks")) {
            tasks.add(Base64.getDecoder().decode(task.asText()));
        }
        return new PythonDataSourceReadInfo(
                Base64.getDecoder().decode(planned.get("function").asText()),
                CollectionConverters.asScala(tasks).toSeq());
    }

    /** Learns which columns a query needs. */
    static class Builder implements ScanBuilder, SupportsPushDownRequiredColumns {
        final Source source;
        final StructType schema;
        final CaseInsensitiveStringMap options;
        // Columns that are there for who names them.
        final StructType hidden;
        private final byte[] work;
        StructType columns;

        Builder(
                Source source,
                StructType schema,
                CaseInsensitiveStringMap options,
                StructType hidden) {
            this(source, schema, options, hidden, null);
        }

        Builder(
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
            return new ColumnScan(source, schema, columns, options, work);
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
