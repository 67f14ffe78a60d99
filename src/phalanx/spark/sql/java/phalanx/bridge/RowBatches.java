package phalanx.bridge;

import java.util.Iterator;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.internal.SQLConf;
import scala.collection.AbstractIterator;

/** Groups rows into batches of the numbers of rows and bytes that Spark is configured to send. */
final class RowBatches extends AbstractIterator<scala.collection.Iterator<InternalRow>> {
    private final Iterator<InternalRow> rows;
    private final int maxRows = SQLConf.get().arrowMaxRecordsPerBatch();
    private final long maxBytes = SQLConf.get().arrowMaxBytesPerBatch();

    RowBatches(Iterator<InternalRow> rows) {
        this.rows = rows;
    }

    @Override
    public boolean hasNext() {
        return rows.hasNext();
    }

    @Override
    public scala.collection.Iterator<InternalRow> next() {
        return new AbstractIterator<>() {
            private int count;
            private long bytes;

            @Override
            public boolean hasNext() {
                return (maxRows <= 0 || count < maxRows)
                        && bytes < maxBytes
                        && rows.hasNext();
            }

            @Override
            public InternalRow next() {
                InternalRow row = rows.next();
                count++;
                bytes += bytesOf(row);
                return row;
            }
        };
    }

    /** Other kinds of rows have no known size: assume large ones. */
    private static int bytesOf(InternalRow row) {
        return row instanceof UnsafeRow known ? known.getSizeInBytes() : 1 << 16;
    }
}
