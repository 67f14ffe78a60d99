package phalanx.bridge;

import java.util.Iterator;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.execution.datasources.v2.python.PythonBatchWriterFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingWriterFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWriterCommitMessage;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource$;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Sends the rows of a task to Python, in batches that fit in memory. */
final class RowWriterFactory extends PythonStreamingWriterFactory {
    RowWriterFactory(PythonBatchWriterFactory rows) {
        super(
                rows.source(),
                rows.pickledWriteFunc(),
                rows.inputSchema(),
                rows.jobArtifactUUID(),
                rows.sessionUUID());
    }

    @Override
    public DataWriter<InternalRow> createWriter(int partition, long task) {
        return createRowWriter();
    }

    RowWriter createRowWriter() {
        return new RowWriter();
    }

    final class RowWriter implements DataWriter<InternalRow> {
        private final PythonTask task =
                new PythonTask(
                        source(),
                        pickledWriteFunc(),
                        "write_to_data_source",
                        inputSchema(),
                        UserDefinedPythonDataSource$.MODULE$.writeOutputSchema(),
                        jobArtifactUUID(),
                        sessionUUID());
        private WriterCommitMessage message;

        @Override
        public void writeAll(Iterator<InternalRow> rows) {
            scala.collection.Iterator<ColumnarBatch> answers = task.run(new RowBatches(rows));
            while (answers.hasNext()) {
                ColumnarBatch answer = answers.next();
                for (int row = 0; row < answer.numRows(); row++) {
                    if (message != null) {
                        throw new IllegalStateException("Python sent more than one commit message for a task.");
                    }
                    message = new PythonWriterCommitMessage(answer.column(0).getBinary(row));
                }
            }
            if (message == null) {
                throw new IllegalStateException("Python sent no commit message for a task.");
            }
        }

        @Override
        public void write(InternalRow row) {
            throw new UnsupportedOperationException("Rows are written all at once.");
        }

        @Override
        public WriterCommitMessage commit() {
            return message;
        }

        @Override
        public CustomTaskMetric[] currentMetricsValues() {
            return task.metrics();
        }

        @Override
        public void abort() {}

        @Override
        public void close() {}
    }
}
