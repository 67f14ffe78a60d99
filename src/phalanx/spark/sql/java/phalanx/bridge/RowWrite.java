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

/** Spark's write of a Python data source, with a faster transfer of rows. */
final class RowWrite extends PythonWrite implements Reads.ReportingWrite {
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
                super.commit(reads.addTo(messages));
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

    /** Collects whether the write replaces all rows. */
    static final class RowWriteBuilder extends PythonWriteBuilder {
        private final Source source;
        private final LogicalWriteInfo info;
        private final Reads reads;
        private boolean overwrites;

        RowWriteBuilder(Source source, LogicalWriteInfo info, Reads reads) {
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

        /** Refuses nanosecond timestamps, for which PySpark would show a stack trace. */
        private static void check(StructType schema) {
            for (StructField field : schema.fields()) {
                String type = field.dataType().sql();
                if (type.matches("(?s).*TIMESTAMP_[LN]TZ\\(\\d\\).*")) {
                    throw new InvalidRequest(
                            String.format(
                                    "Cannot store column '%s' as %s: PySpark has no Arrow type for it."
                                            + " Cast it to another type.",
                                    field.name(), type));
                }
            }
        }
    }
}
