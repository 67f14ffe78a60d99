package phalanx.bridge;

import java.math.BigInteger;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.functions.Reducer;
import org.apache.spark.sql.connector.catalog.functions.ReducibleFunction;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.hash.Murmur3_x86_32;

/** {@code abs(murmur3(value)) % buckets}, equal to the partition value that the table stores. */
record Bucket(DataType type)
        implements ScalarFunction<Integer>, ReducibleFunction<Integer, Integer> {
    private static final int SEED = 0;

    Bucket {
        if (!(isInteger(type)
                || type instanceof StringType
                || type instanceof BinaryType
                || type instanceof DecimalType)) {
            throw new UnsupportedOperationException("Cannot bucket " + type.simpleString());
        }
    }

    private static boolean isInteger(DataType type) {
        return type instanceof ByteType
                || type instanceof ShortType
                || type instanceof IntegerType
                || type instanceof LongType
                || type instanceof DateType
                || type instanceof TimestampType
                || type instanceof TimestampNTZType;
    }

    @Override
    public String name() {
        return "bucket";
    }

    /** Equal names let Spark join two sides without a shuffle. */
    @Override
    public String canonicalName() {
        return "phalanx.bucket(" + type.catalogString() + ")";
    }

    @Override
    public DataType[] inputTypes() {
        return new DataType[] {DataTypes.IntegerType, type};
    }

    @Override
    public DataType resultType() {
        return DataTypes.IntegerType;
    }

    @Override
    public Integer produceResult(InternalRow row) {
        if (row.isNullAt(1)) {
            return null;
        }
        return (int) (Math.abs((long) hash(row)) % row.getInt(0));
    }

    private int hash(InternalRow row) {
        if (type instanceof StringType) {
            return hash(row.getUTF8String(1).getBytes());
        }
        if (type instanceof BinaryType) {
            return hash(row.getBinary(1));
        }
        if (type instanceof DecimalType decimal) {
            BigInteger unscaled =
                    row.getDecimal(1, decimal.precision(), decimal.scale())
                            .toJavaBigDecimal()
                            .setScale(decimal.scale())
                            .unscaledValue();
            return hash(unscaled.toByteArray());
        }
        return Murmur3_x86_32.hashLong(integer(row), SEED);
    }

    private long integer(InternalRow row) {
        if (type instanceof ByteType) {
            return row.getByte(1);
        }
        if (type instanceof ShortType) {
            return row.getShort(1);
        }
        if (type instanceof IntegerType || type instanceof DateType) {
            return row.getInt(1);
        }
        return row.getLong(1);
    }

    /** Standard murmur3. Spark's default variant hashes trailing bytes in another way. */
    private static int hash(byte[] bytes) {
        return Murmur3_x86_32.hashUnsafeBytes2(
                bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length, SEED);
    }

    // ── joins of tables with different numbers of buckets ────────────────────────────────────

    @Override
    public Reducer<Integer, Integer> reducer(
            int buckets, ReducibleFunction<?, ?> other, int otherBuckets) {
        int common =
                BigInteger.valueOf(buckets).gcd(BigInteger.valueOf(otherBuckets)).intValue();
        boolean isUseful = equals(other) && common > 1 && common < buckets;
        return isUseful ? new Remainder(common) : null;
    }

    @Override
    public Reducer<Integer, Integer> reducer(ReducibleFunction<?, ?> other) {
        return null;
    }

    private record Remainder(int buckets) implements Reducer<Integer, Integer> {
        @Override
        public Integer reduce(Integer bucket) {
            return bucket == null ? null : bucket % buckets;
        }

        @Override
        public DataType resultType() {
            return DataTypes.IntegerType;
        }
    }
}
