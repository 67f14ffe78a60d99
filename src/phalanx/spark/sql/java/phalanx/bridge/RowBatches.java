package phalanx.bridge;

import java.util.Iterator;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.internal.SQLConf;
import scala.collection.AbstractIterator;

/** Rows in batches of so many rows, and so many bytes, as Spark is configured to send at once. */
final class RowBatches extends AbstractIterator<scala.collection.Iterator<InternalRow>> {
    private final Iterator<InternalRow> rows;
    private final int mostRows = SQLConf.get().arrowMaxRecordsPerBatch();
    private final long mostBytes = SQLConf.get().arrowMaxBytesPerBatch();

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
                return (mostRows <= 0 || count < mostRows)
                        && bytes < mostBytes
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

    /** Rows of other kinds do not know their size: they are taken for large ones. */
    private static int bytesOf(InternalRow row) {
        return row instanceof UnsafeRow known ? known.getSizeInBytes() : 1 << 16;
    }
}
