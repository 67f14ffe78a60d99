package phalanx.bridge;

import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.execution.datasources.v2.python.PythonBatchWrite;
import org.apache.spark.sql.execution.datasources.v2.python.PythonBatchWriterFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingWrite;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWrite;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWriteBuilder;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** Spark's write by Python, with tasks that hand over their rows faster. */
final class RowWrite extends PythonWrite implements Reads.Reader {
    private final Source source;
    private final LogicalWriteInfo info;
    private final boolean overwrites;
    private final Reads reads;

    private RowWrite(Source source, LogicalWriteInfo info, boolean overwrites, Reads reads) {
        super(source, Source.NAME, info, overwrites);
        this.reads = reads;
        this.source = source;
        this.info = info;
        this.overwrites = overwrites;
    }

    @Override
    public BatchWrite toBatch() {
        return new PythonBatchWrite(source, Source.NAME, info, overwrites) {
            @Override
            public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo physical) {
                return new RowWriterFactory(
                        (PythonBatchWriterFactory) super.createBatchWriterFactory(physical));
            }

            @Override
            public void commit(WriterCommitMessage[] messages) {
                super.commit(reads.with(messages));
            }
        };
    }

    @Override
    public Reads reads() {
        return reads;
    }

    @Override
    public StreamingWrite toStreaming() {
        return new PythonStreamingWrite(source, Source.NAME, info, overwrites) {
            @Override
            public StreamingDataWriterFactory createStreamingWriterFactory(
                    PhysicalWriteInfo physical) {
                return new RowWriterFactory(
                        (PythonBatchWriterFactory) super.createStreamingWriterFactory(physical));
            }
        };
    }

    /** Learns whether what is there is replaced. */
    static final class Builder extends PythonWriteBuilder {
        private final Source source;
        private final LogicalWriteInfo info;
        private final Reads reads;
        private boolean overwrites;

        Builder(Source source, LogicalWriteInfo info, Reads reads) {
            super(source, Source.NAME, info);
            this.reads = reads;
            this.source = source;
            this.info = info;
        }

        @Override
        public WriteBuilder truncate() {
            overwrites = true;
            return this;
        }

        @Override
        public Write build() {
            check(info.schema());
            return new RowWrite(source, info, overwrites, reads);
        }

        /** PySpark lacks the timestamps of nanoseconds, and would say so by a stack trace. */
        private static void check(StructType schema) {
            for (StructField field : schema.fields()) {
                String type = field.dataType().sql();
                if (type.matches("(?s).*TIMESTAMP_[LN]TZ\\(\\d\\).*")) {
                    throw new CatalogSettings.Refused(
                            String.format(
                                    "Cannot keep column '%s' as %s: PySpark has no such type in"
                                            + " Arrow. Cast it to another one.",
                                    field.name(), type));
                }
            }
        }
    }
}
