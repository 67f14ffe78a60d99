package phalanx.bridge;

import java.util.Arrays;
import org.apache.spark.sql.connector.distributions.Distribution;
import org.apache.spark.sql.connector.distributions.Distributions;
import org.apache.spark.sql.connector.expressions.SortOrder;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.write.DeltaBatchWrite;
import org.apache.spark.sql.connector.write.DeltaWrite;
import org.apache.spark.sql.connector.write.DeltaWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.LogicalWriteInfoImpl;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.RequiresDistributionAndOrdering;
import org.apache.spark.sql.connector.write.RowLevelOperation.Command;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.execution.datasources.v2.python.PythonBatchWrite;
import org.apache.spark.sql.execution.datasources.v2.python.PythonBatchWriterFactory;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Sends changes of rows to Python: for each row the operation, its id and its new values. */
final class RowChangeWrite
        implements DeltaWrite, RequiresDistributionAndOrdering, Reads.ReportingWrite {
    private static final StructField OPERATION =
            new StructField("_phalanx_operation", DataTypes.IntegerType, false, Metadata.empty());

    private final RowChanges changes;
    private final LogicalWriteInfo info;
    private final Reads reads;

    RowChangeWrite(RowChanges changes, LogicalWriteInfo given, CaseInsensitiveStringMap options) {
        this.changes = changes;
        this.reads = new Reads(changes.table());
        this.info =
                new LogicalWriteInfoImpl(
                        given.queryId(),
                        inputSchema(given.schema()),
                        options,
                        given.rowIdSchema(),
                        given.metadataSchema());
    }

    /** All columns are nullable: deleted rows have no values, inserted rows no id. */
    private static StructType inputSchema(StructType columns) {
        StructType sent = new StructType(new StructField[] {OPERATION});
        for (StructType part : Arrays.asList(RowLevelTable.ROW_ID, columns)) {
            for (StructField each : part.fields()) {
                sent = sent.add(each.name(), each.dataType(), true);
            }
        }
        return sent;
    }

    /**
     * A MERGE is clustered by partition, since its join leaves rows of all partitions in all tasks.
     * An UPDATE reads them as they are stored, and most stay in their partition.
     */
    @Override
    public Distribution requiredDistribution() {
        Transform[] clusters = Transforms.of(changes.table().loaded.get("clusters"));
        return changes.command() != Command.MERGE || clusters.length == 0
                ? Distributions.unspecified()
                : Distributions.clustered(clusters);
    }

    @Override
    public boolean distributionStrictlyRequired() {
        return false;
    }

    @Override
    public SortOrder[] requiredOrdering() {
        return new SortOrder[0];
    }

    @Override
    public String description() {
        return changes.description();
    }

    @Override
    public String toString() {
        return description();
    }

    @Override
    public Reads reads() {
        return reads;
    }

    @Override
    public DeltaBatchWrite toBatch() {
        return new RowChangeBatch();
    }

    private final class RowChangeBatch extends PythonBatchWrite implements DeltaBatchWrite {
        RowChangeBatch() {
            super(Source.create(), Source.NAME, info, false);
        }

        @Override
        public DeltaWriterFactory createBatchWriterFactory(PhysicalWriteInfo physical) {
            return new RowChangeWriterFactory(
                    (PythonBatchWriterFactory) super.createBatchWriterFactory(physical));
        }

        @Override
        public void commit(WriterCommitMessage[] messages) {
            super.commit(reads.addTo(messages));
        }
    }
}
