package phalanx.bridge;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.execution.datasources.v2.python.PythonCustomMetric$;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.execution.python.ArrowPythonRunner;
import org.apache.spark.sql.execution.python.MapInBatchEvaluatorFactory;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.Option;
import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractFunction1;

/**
 * A function of a Python data source, run in a worker by one task: rows in, columns out.
 *
 * <p>Spark's own runner checks the size of the batch after each row, which is most of the cost of a
 * write, and converts the columns to rows.
 */
final class PythonTask {
    private final UserDefinedPythonDataSource source;
    private final MapInBatchEvaluatorFactory function;
    private final int columns;

    PythonTask(
            UserDefinedPythonDataSource source,
            byte[] function,
            String name,
            StructType input,
            StructType output,
            Option<String> artifacts,
            Option<String> session) {
        this.source = source;
        this.columns = output.length();
        this.function =
                source.createMapInBatchEvaluatorFactory(
                        function,
                        name,
                        input,
                        output,
                        PythonCustomMetric$.MODULE$.pythonMetrics(),
                        artifacts,
                        session);
    }

    /** Sends batches of rows to Python, and returns the batches that it answers. */
    Iterator<ColumnarBatch> run(Iterator<Iterator<InternalRow>> batches) {
        TaskContext context = TaskContext.get();
        Iterator<Iterator<InternalRow>> input = batches.map(function(rows -> wrap(rows)));
        Iterator<ColumnarBatch> output =
                runner().compute(input, context.partitionId(), context);
        return output.map(function(batch -> unwrap(batch)));
    }

    CustomTaskMetric[] metrics() {
        Map<String, Object> values = new HashMap<>();
        for (Map.Entry<String, SQLMetric> each :
                CollectionConverters.asJava(function.pythonMetrics()).entrySet()) {
            values.put(each.getKey(), each.getValue().value());
        }
        return source.createPythonTaskMetrics(
                scala.collection.immutable.Map.from(CollectionConverters.asScala(values)));
    }

    private ArrowPythonRunner runner() {
        StructField rows =
                new StructField(
                        "struct",
                        function.org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$inputSchema,
                        true,
                        Metadata.empty());
        return new ArrowPythonRunner(
                function.org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$chainedFunc,
                function.org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$pythonEvalType,
                new int[][] {{0}},
                new StructType(new StructField[] {rows}),
                function.org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$sessionLocalTimeZone,
                function.org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$largeVarTypes,
                function.org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$pythonRunnerConf,
                function.pythonMetrics(),
                function.org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$jobArtifactUUID,
                function.org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$sessionUUID);
    }

    /** Wraps rows as one column of structs. Each row is written before the next is requested. */
    private static Iterator<InternalRow> wrap(Iterator<InternalRow> rows) {
        Object[] holder = new Object[1];
        InternalRow holding = new GenericInternalRow(holder);
        return rows.map(
                function(
                        row -> {
                            holder[0] = row;
                            return holding;
                        }));
    }

    private ColumnarBatch unwrap(ColumnarBatch batch) {
        ArrowColumnVector rows = (ArrowColumnVector) batch.column(0);
        ColumnVector[] found = new ColumnVector[columns];
        for (int i = 0; i < columns; i++) {
            found[i] = new DirectColumn(rows.getChild(i));
        }
        return new ColumnarBatch(found, batch.numRows());
    }

    private static <A, B> AbstractFunction1<A, B> function(java.util.function.Function<A, B> of) {
        return new AbstractFunction1<>() {
            @Override
            public B apply(A value) {
                return of.apply(value);
            }
        };
    }
}
