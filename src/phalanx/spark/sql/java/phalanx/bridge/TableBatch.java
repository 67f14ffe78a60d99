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

/** The tasks of a scan, which Python is asked for once; two that read the same rows are equal. */
final class TableBatch implements Batch {
    private final Source source;
    private final StructType columns;
    private final CaseInsensitiveStringMap options;
    private final Question question;
    // Of the keys of tasks: null where they have none.
    private final StructType keyTypes;
    private InputPartition[] partitions;
    private long leaves = -1;
    private byte[] looked;
    private volatile boolean isRead;
    private ColumnScan.ColumnBatch columnBatch;

    TableBatch(
            Source source,
            StructType columns,
            CaseInsensitiveStringMap options,
            Question question,
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
        JsonNode planned = question.ask("tasks");
        Base64.Decoder base64 = Base64.getDecoder();
        JsonNode keys = planned.get("keys");
        InputPartition[] made = new InputPartition[planned.get("tasks").size()];
        for (int i = 0; i < made.length; i++) {
            byte[] task = base64.decode(planned.get("tasks").get(i).asText());
            made[i] =
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
                new ColumnScan.ColumnBatch(Source.planned(info), Source.NAME, columns, options);
        partitions = made;
        leaves = planned.get("partitions").asLong();
        JsonNode told = planned.get("looked");
        looked = told.isNull() ? null : base64.decode(told.asText());
        // Without tasks nothing will tell that there is nothing to read.
        isRead = made.length == 0;
    }

    /**
     * Whether Spark has handed the tasks out, and there is something to tell of it: batches that it
     * only has planned read nothing.
     */
    boolean isRead() {
        return isRead && looked != null;
    }

    /** What tells Python which rows are looked for; null before the tasks are planned. */
    byte[] looked() {
        return looked;
    }

    /** How many leaves the tasks read; less than 0 before they are planned. */
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

    /** A task, which tells its batch when it is on its way to an executor. */
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
