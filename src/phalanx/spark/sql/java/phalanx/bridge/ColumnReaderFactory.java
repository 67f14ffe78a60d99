package phalanx.bridge;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonPartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource$;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.Iterator$;

/** Reads the rows of a task as the Arrow columns that Python sends. */
final class ColumnReaderFactory extends PythonPartitionReaderFactory {
    private final UserDefinedPythonDataSource source;
    private final byte[] function;
    private final StructType columns;
    private final Option<String> artifacts;
    private final Option<String> session;

    ColumnReaderFactory(PythonPartitionReaderFactory rows) {
        this(
                rows.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$source,
                rows.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$pickledReadFunc,
                rows.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$outputSchema,
                rows.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$jobArtifactUUID,
                rows.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$sessionUUID);
    }

    private ColumnReaderFactory(
            UserDefinedPythonDataSource source,
            byte[] function,
            StructType columns,
            Option<String> artifacts,
            Option<String> session) {
        super(source, function, columns, artifacts, session);
        this.source = source;
        this.function = function;
        this.columns = columns;
        this.artifacts = artifacts;
        this.session = session;
    }

    @Override
    public boolean supportColumnarReads(InputPartition partition) {
        return true;
    }

    @Override
    public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
        PythonTask task =
                new PythonTask(
                        source,
                        function,
                        "read_from_data_source",
                        UserDefinedPythonDataSource$.MODULE$.readInputSchema(),
                        columns,
                        artifacts,
                        session);
        InternalRow input =
                new GenericInternalRow(
                        new Object[] {((PythonInputPartition) partition).pickedPartition()});
        Iterator<ColumnarBatch> batches =
                task.run(Iterator$.MODULE$.single(Iterator$.MODULE$.single(input)));
        return new PartitionReader<>() {
            @Override
            public boolean next() {
                return batches.hasNext();
            }

            @Override
            public ColumnarBatch get() {
                return batches.next();
            }

            @Override
            public CustomTaskMetric[] currentMetricsValues() {
                return task.metrics();
            }

            /** Spark takes the worker back when the task ends. */
            @Override
            public void close() {}
        };
    }
}
