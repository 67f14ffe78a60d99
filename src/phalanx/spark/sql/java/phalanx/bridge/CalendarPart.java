package phalanx.bridge;

import java.time.LocalDate;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.functions.Reducer;
import org.apache.spark.sql.connector.catalog.functions.ReducibleFunction;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;

/** The year, month, day or hour of a date or timestamp, in UTC. */
record CalendarPart(String part, DataType type)
        implements ScalarFunction<Integer>, ReducibleFunction<Integer, Integer> {
    private static final long HOUR = 3_600_000_000L;

    CalendarPart {
        check(part, type);
    }

    /** Refuses types that do not have the part. */
    static void check(String part, DataType type) {
        boolean isTimestamp = type instanceof TimestampType || type instanceof TimestampNTZType;
        if (!isTimestamp && !(type instanceof DateType && !part.equals("hour"))) {
            throw new UnsupportedOperationException("Cannot take the " + part + " of " + type.simpleString());
        }
    }

    @Override
    public String name() {
        return part;
    }

    boolean isYear() {
        return part.equals("year");
    }

    /** Equal names let Spark join two sides without a shuffle. */
    @Override
    public String canonicalName() {
        return "phalanx." + part + "(" + type.catalogString() + ")";
    }

    @Override
    public DataType[] inputTypes() {
        return new DataType[] {type};
    }

    @Override
    public DataType resultType() {
        return DataTypes.IntegerType;
    }

    @Override
    public Integer produceResult(InternalRow row) {
        if (row.isNullAt(0)) {
            return null;
        }
        if (type instanceof DateType) {
            return ofDay(row.getInt(0));
        }
        long hours = Math.floorDiv(row.getLong(0), HOUR);
        return part.equals("hour") ? (int) Math.floorMod(hours, 24L) : ofDay(Math.floorDiv(hours, 24L));
    }

    /** A year is not reduced; longer chains reduce to it. */
    @Override
    public Reducer<Integer, Integer> reducer(ReducibleFunction<?, ?> other) {
        return null;
    }

    @Override
    public Reducer<Integer, Integer> reducer(
            int ours, ReducibleFunction<?, ?> other, int theirs) {
        return null;
    }

    private Integer ofDay(long day) {
        LocalDate date = LocalDate.ofEpochDay(day);
        return switch (part) {
            case "year" -> date.getYear();
            case "month" -> date.getMonthValue();
            case "day" -> date.getDayOfMonth();
            default -> throw new IllegalStateException("No calendar part is called " + part);
        };
    }
}
