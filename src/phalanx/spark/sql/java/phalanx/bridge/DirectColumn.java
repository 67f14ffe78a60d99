package phalanx.bridge;

import org.apache.arrow.vector.BaseFixedWidthVector;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.DateDayVector;
import org.apache.arrow.vector.Float4Vector;
import org.apache.arrow.vector.Float8Vector;
import org.apache.arrow.vector.IntVector;
import org.apache.arrow.vector.TimeStampMicroTZVector;
import org.apache.arrow.vector.TimeStampMicroVector;
import org.apache.arrow.vector.ValueVector;
import org.apache.arrow.vector.VarCharVector;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.BinaryView;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * A column of a batch that reads values of the common types directly from memory. Arrow's accessors
 * would check each value for NULL and for the bounds of its buffer.
 *
 * <p>The next batch reuses its memory, so a reader must not free it. For the same reason it is not an
 * ArrowColumnVector: next to Python functions Spark keeps batches of those while it requests more,
 * and copies the rows of all others.
 */
final class DirectColumn extends ColumnVector {
    private final ArrowColumnVector arrow;
    private final boolean mayHaveNulls;
    // Addresses of the values and of their offsets; 0 if Arrow's accessors are used.
    private final long values;
    private final long offsets;

    DirectColumn(ArrowColumnVector arrow) {
        super(arrow.dataType());
        this.arrow = arrow;
        ValueVector vector = arrow.getValueVector();
        mayHaveNulls = vector.getNullCount() > 0;
        if (isFixedWidth(vector)) {
            values = ((BaseFixedWidthVector) vector).getDataBuffer().memoryAddress();
            offsets = 0;
        } else if (vector instanceof VarCharVector texts && texts.getValueCount() > 0) {
            values = texts.getDataBuffer().memoryAddress();
            offsets = texts.getOffsetBuffer().memoryAddress();
        } else {
            values = 0;
            offsets = 0;
        }
    }

    private static boolean isFixedWidth(ValueVector vector) {
        return vector instanceof IntVector
                || vector instanceof BigIntVector
                || vector instanceof Float4Vector
                || vector instanceof Float8Vector
                || vector instanceof DateDayVector
                || vector instanceof TimeStampMicroVector
                || vector instanceof TimeStampMicroTZVector;
    }

    @Override
    public boolean hasNull() {
        return mayHaveNulls;
    }

    @Override
    public boolean isNullAt(int row) {
        return mayHaveNulls && arrow.isNullAt(row);
    }

    @Override
    public int getInt(int row) {
        return values != 0 ? Platform.getInt(null, values + 4L * row) : arrow.getInt(row);
    }

    @Override
    public long getLong(int row) {
        return values != 0 ? Platform.getLong(null, values + 8L * row) : arrow.getLong(row);
    }

    @Override
    public float getFloat(int row) {
        return values != 0 ? Platform.getFloat(null, values + 4L * row) : arrow.getFloat(row);
    }

    @Override
    public double getDouble(int row) {
        return values != 0 ? Platform.getDouble(null, values + 8L * row) : arrow.getDouble(row);
    }

    @Override
    public UTF8String getUTF8String(int row) {
        if (offsets == 0 || isNullAt(row)) {
            return arrow.getUTF8String(row);
        }
        int start = Platform.getInt(null, offsets + 4L * row);
        int end = Platform.getInt(null, offsets + 4L * row + 4);
        return UTF8String.fromAddress(null, values + start, end - start);
    }

    @Override
    public int numNulls() {
        return arrow.numNulls();
    }

    @Override
    public boolean getBoolean(int row) {
        return arrow.getBoolean(row);
    }

    @Override
    public byte getByte(int row) {
        return arrow.getByte(row);
    }

    @Override
    public short getShort(int row) {
        return arrow.getShort(row);
    }

    @Override
    public Decimal getDecimal(int row, int precision, int scale) {
        return arrow.getDecimal(row, precision, scale);
    }

    @Override
    public byte[] getBinary(int row) {
        return arrow.getBinary(row);
    }

    @Override
    public BinaryView getBinaryView(int row) {
        return arrow.getBinaryView(row);
    }

    @Override
    public ColumnarArray getArray(int row) {
        return arrow.getArray(row);
    }

    @Override
    public ColumnarMap getMap(int row) {
        return arrow.getMap(row);
    }

    @Override
    public ColumnVector getChild(int index) {
        return arrow.getChild(index);
    }

    @Override
    public void close() {}

    @Override
    public void closeIfFreeable() {}
}
