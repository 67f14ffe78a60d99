package phalanx.bridge;

import com.fasterxml.jackson.databind.JsonNode;
import java.math.BigDecimal;
import java.util.HexFormat;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.unsafe.types.UTF8String;

/** Converts Spark's values to the texts that Python reads and writes, and back. */
final class Values {
    private Values() {}

    /** Whether a value has a text form. Invalid UTF-8 has none. */
    static boolean hasText(Object value) {
        return value == null
                || value instanceof Boolean
                || value instanceof Number
                || value instanceof Decimal
                || value instanceof byte[]
                || value instanceof UTF8String string && string.isValid();
    }

    static String text(Object value) {
        if (value == null) {
            return null;
        }
        if (value instanceof byte[] bytes) {
            return HexFormat.of().formatHex(bytes);
        }
        if (value instanceof Decimal decimal) {
            return decimal.toJavaBigDecimal().toPlainString();
        }
        return value.toString();
    }

    static InternalRow row(JsonNode texts, StructType types) {
        Object[] values = new Object[types.length()];
        for (int i = 0; i < values.length; i++) {
            JsonNode text = texts.get(i);
            values[i] = text.isNull() ? null : value(text.asText(), types.apply(i).dataType());
        }
        return new GenericInternalRow(values);
    }

    private static Object value(String text, DataType type) {
        if (type instanceof StringType) {
            return UTF8String.fromString(text);
        }
        if (type instanceof BooleanType) {
            return Boolean.valueOf(text);
        }
        if (type instanceof ByteType) {
            return Byte.valueOf(text);
        }
        if (type instanceof ShortType) {
            return Short.valueOf(text);
        }
        if (type instanceof IntegerType || type instanceof DateType) {
            return Integer.valueOf(text);
        }
        if (type instanceof LongType
                || type instanceof TimestampType
                || type instanceof TimestampNTZType) {
            return Long.valueOf(text);
        }
        if (type instanceof DecimalType decimal) {
            return Decimal.apply(new BigDecimal(text), decimal.precision(), decimal.scale());
        }
        if (type instanceof BinaryType) {
            return HexFormat.of().parseHex(text);
        }
        throw new IllegalArgumentException("Cannot read a value of " + type + " from Python.");
    }
}
