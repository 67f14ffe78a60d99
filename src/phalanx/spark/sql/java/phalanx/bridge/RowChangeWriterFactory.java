package phalanx.bridge;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.JoinedRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.DeltaWriter;
import org.apache.spark.sql.connector.write.DeltaWriterFactory;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.execution.ExternalAppendOnlyUnsafeRowArray;
import org.apache.spark.sql.execution.datasources.v2.python.PythonBatchWriterFactory;
import org.apache.spark.sql.internal.SQLConf;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Collects the changes of a task, and hands them to Python when all are there.
 *
 * <p>Spark brings changes one by one, where Python asks for rows. So they wait in memory, and on
 * disk where they are too many: no thread has to stand between the two.
 */
final class RowChangeWriterFactory implements DeltaWriterFactory {
    // What happens to a row, as Python knows it.
    private static final int DELETE = 1;
    private static final int UPDATE = 2;
    private static final int INSERT = 3;
    private static final int ID_COLUMNS = 3;

    private final RowWriterFactory rows;

    RowChangeWriterFactory(PythonBatchWriterFactory rows) {
        this.rows = new RowWriterFactory(rows);
    }

    @Override
    public DeltaWriter<InternalRow> createWriter(int partition, long task) {
        return new Writer(rows.writer());
    }

    private final class Writer implements DeltaWriter<InternalRow> {
        private final RowWriterFactory.Writer python;
        private final UnsafeProjection projection =
                UnsafeProjection.create(rows.inputSchema());
        private final InternalRow nothing =
                new GenericInternalRow(rows.inputSchema().length() - ID_COLUMNS);
        private final InternalRow id = new GenericInternalRow(ID_COLUMNS);
        private final JoinedRow change = new JoinedRow();
        private final ExternalAppendOnlyUnsafeRowArray waiting =
                new ExternalAppendOnlyUnsafeRowArray(
                        SQLConf.get().windowExecBufferInMemoryThreshold(),
                        SQLConf.get().windowExecBufferSpillSizeThreshold(),
                        SQLConf.get().windowExecBufferSpillThreshold(),
                        SQLConf.get().windowExecBufferSpillSizeThreshold());

        Writer(RowWriterFactory.Writer python) {
            this.python = python;
        }

        @Override
        public void delete(InternalRow metadata, InternalRow row) {
            add(DELETE, row, nothing);
        }

        @Override
        public void update(InternalRow metadata, InternalRow row, InternalRow values) {
            add(UPDATE, row, values);
        }

        @Override
        public void insert(InternalRow values) {
            add(INSERT, null, values);
        }

        @Override
        public void reinsert(InternalRow metadata, InternalRow values) {
            add(INSERT, null, values);
        }

        private void add(int operation, InternalRow row, InternalRow values) {
            id.setInt(0, operation);
            for (int i = 1; i < ID_COLUMNS; i++) {
                if (row == null) {
                    id.setNullAt(i);
                } else {
                    id.setLong(i, row.getLong(i - 1));
                }
            }
            waiting.add(projection.apply(change.apply(id, values)));
        }

        @Override
        public WriterCommitMessage commit() {
            java.util.Iterator<UnsafeRow> all =
                    CollectionConverters.asJava(waiting.generateIterator());
            python.writeAll(
                    new java.util.Iterator<>() {
                        @Override
                        public boolean hasNext() {
                            return all.hasNext();
                        }

                        @Override
                        public InternalRow next() {
                            return all.next();
                        }
                    });
            return python.commit();
        }

        @Override
        public CustomTaskMetric[] currentMetricsValues() {
            return python.currentMetricsValues();
        }

        @Override
        public void abort() {}

        @Override
        public void close() {
            waiting.clear();
        }
    }
}
