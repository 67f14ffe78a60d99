package phalanx.bridge;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.io.ObjectOutputStream;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Objects;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.HasPartitionKey;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceReadInfo;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.jdk.javaapi.CollectionConverters;

/** The tasks of a scan, planned once by Python. Two batches that read the same rows are equal. */
final class TableBatch implements Batch {
    private final Source source;
    private final StructType columns;
    private final CaseInsensitiveStringMap options;
    private final Planner.ScanQuestion question;
    // Null if the tasks have no partition keys.
    private final StructType keyTypes;
    private InputPartition[] partitions;
    private long leaves = -1;
    private byte[] readSet;
    private volatile boolean isRead;
    private ColumnScan.ColumnBatch columnBatch;

    TableBatch(
            Source source,
            StructType columns,
            CaseInsensitiveStringMap options,
            Planner.ScanQuestion question,
            StructType keyTypes) {
        this.source = source;
        this.columns = columns;
        this.options = options;
        this.question = question;
        this.keyTypes = keyTypes;
    }

    private synchronized void plan() {
        if (partitions != null) {
            return;
        }
        JsonNode planned = question.planTasks();
        Base64.Decoder base64 = Base64.getDecoder();
        JsonNode keys = planned.get("keys");
        InputPartition[] tasks = new InputPartition[planned.get("tasks").size()];
        for (int i = 0; i < tasks.length; i++) {
            byte[] task = base64.decode(planned.get("tasks").get(i).asText());
            tasks[i] =
                    keyTypes == null
                            ? new Partition(i, task, this)
                            : new KeyedPartition(
                                    i, task, this, Values.row(keys.get(i), keyTypes));
        }
        byte[] function = base64.decode(planned.get("function").asText());
        List<byte[]> none = new ArrayList<>();
        PythonDataSourceReadInfo info =
                new PythonDataSourceReadInfo(
                        function, CollectionConverters.asScala(none).toSeq());
        columnBatch =
                new ColumnScan.ColumnBatch(Source.ofPlan(info), Source.NAME, columns, options);
        partitions = tasks;
        leaves = planned.get("partitions").asLong();
        JsonNode text = planned.get("read_set");
        readSet = text.isNull() ? null : base64.decode(text.asText());
        // Without tasks nothing is serialized, so the empty result counts as read.
        isRead = tasks.length == 0;
    }

    /**
     * Whether Spark has sent the tasks to executors, and there is a read set: a batch that is only
     * planned reads nothing.
     */
    boolean isRead() {
        return isRead && readSet != null;
    }

    /** The read set of the tasks; null before they are planned. */
    byte[] readSet() {
        return readSet;
    }

    /** The number of leaves that the tasks read; -1 before they are planned. */
    long leaves() {
        return leaves;
    }

    @Override
    public InputPartition[] planInputPartitions() {
        plan();
        return partitions;
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        plan();
        return columnBatch.createReaderFactory();
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof TableBatch batch && question.equals(batch.question);
    }

    @Override
    public int hashCode() {
        return Objects.hash(question);
    }

    /** A task that marks its batch as read when it is serialized for an executor. */
    private static class Partition extends PythonInputPartition {
        private final transient TableBatch batch;

        Partition(int index, byte[] task, TableBatch batch) {
            super(index, task);
            this.batch = batch;
        }

        private void writeObject(ObjectOutputStream out) throws IOException {
            if (batch != null) {
                batch.isRead = true;
            }
            out.defaultWriteObject();
        }
    }

    private static final class KeyedPartition extends Partition implements HasPartitionKey {
        private final InternalRow key;

        KeyedPartition(int index, byte[] task, TableBatch batch, InternalRow key) {
            super(index, task, batch);
            this.key = key;
        }

        @Override
        public InternalRow partitionKey() {
            return key;
        }
    }
}
