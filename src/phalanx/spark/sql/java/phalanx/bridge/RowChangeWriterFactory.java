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
 * Collects the changes of a task, and sends them to Python at the commit of the task.
 *
 * <p>Spark pushes changes one by one, while Python pulls rows. Buffering them in memory, and on disk
 * if there are many, needs no thread between the two.
 */
final class RowChangeWriterFactory implements DeltaWriterFactory {
    // The operations, with the numbers that Python uses.
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
        return new RowChangeWriter(rows.createRowWriter());
    }

    private final class RowChangeWriter implements DeltaWriter<InternalRow> {
        private final RowWriterFactory.RowWriter python;
        private final UnsafeProjection projection =
                UnsafeProjection.create(rows.inputSchema());
        private final InternalRow noValues =
                new GenericInternalRow(rows.inputSchema().length() - ID_COLUMNS);
        private final InternalRow id = new GenericInternalRow(ID_COLUMNS);
        private final JoinedRow change = new JoinedRow();
        private final ExternalAppendOnlyUnsafeRowArray buffer =
                new ExternalAppendOnlyUnsafeRowArray(
                        SQLConf.get().windowExecBufferInMemoryThreshold(),
                        SQLConf.get().windowExecBufferSpillSizeThreshold(),
                        SQLConf.get().windowExecBufferSpillThreshold(),
                        SQLConf.get().windowExecBufferSpillSizeThreshold());

        RowChangeWriter(RowWriterFactory.RowWriter python) {
            this.python = python;
        }

        @Override
        public void delete(InternalRow metadata, InternalRow row) {
            add(DELETE, row, noValues);
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
            buffer.add(projection.apply(change.apply(id, values)));
        }

        @Override
        public WriterCommitMessage commit() {
            java.util.Iterator<UnsafeRow> all =
                    CollectionConverters.asJava(buffer.generateIterator());
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
            buffer.clear();
        }
    }
}
