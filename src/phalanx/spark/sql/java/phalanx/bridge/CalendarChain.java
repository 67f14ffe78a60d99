package phalanx.bridge;

import java.time.LocalDate;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.functions.Reducer;
import org.apache.spark.sql.connector.catalog.functions.ReducibleFunction;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;

/**
 * The leading calendar parts of a date or timestamp in UTC as one number: year and month of
 * 2025-12-31 are 202512. A shorter chain is a prefix of its digits, so tables partitioned by months
 * and by years can be joined.
 */
record CalendarChain(String name, DataType type)
        implements ScalarFunction<Long>, ReducibleFunction<Long, Number> {
    /** The names; each has one part more than the previous one. */
    static final List<String> NAMES =
            List.of("year", "year_month", "year_month_day", "year_month_day_hour");

    private static final long BASE = 100;
    private static final long HOUR = 3_600_000_000L;
    private static final int ALL = 4;

    CalendarChain {
        CalendarPart.check(parts(name) == ALL ? "hour" : "year", type);
    }

    /** The number of parts of a chain; 0 if the name is not a chain. */
    static int parts(String name) {
        return NAMES.indexOf(name) + 1;
    }

    /** Equal names let Spark join two sides without a shuffle. */
    @Override
    public String canonicalName() {
        return "phalanx." + name + "(" + type.catalogString() + ")";
    }

    @Override
    public DataType[] inputTypes() {
        return new DataType[] {type};
    }

    @Override
    public DataType resultType() {
        return DataTypes.LongType;
    }

    @Override
    public Long produceResult(InternalRow row) {
        if (row.isNullAt(0)) {
            return null;
        }
        boolean isDay = type.equals(DataTypes.DateType);
        long hours = isDay ? 24L * row.getInt(0) : Math.floorDiv(row.getLong(0), HOUR);
        LocalDate date = LocalDate.ofEpochDay(Math.floorDiv(hours, 24L));
        long days = (date.getYear() * BASE + date.getMonthValue()) * BASE + date.getDayOfMonth();
        return dropDigits(days * BASE + Math.floorMod(hours, 24L), ALL - parts(name));
    }

    private static long dropDigits(long number, int fewer) {
        for (int i = 0; i < fewer; i++) {
            number = Math.floorDiv(number, BASE);
        }
        return number;
    }

    @Override
    public Reducer<Long, Number> reducer(ReducibleFunction<?, ?> other) {
        if (other instanceof CalendarPart year && year.isYear() && year.type().equals(type)) {
            return new DropParts(parts(name) - 1, DataTypes.IntegerType);
        }
        boolean isShorter =
                other instanceof CalendarChain chain
                        && chain.type.equals(type)
                        && parts(chain.name) < parts(name);
        return isShorter
                ? new DropParts(parts(name) - parts(((CalendarChain) other).name), DataTypes.LongType)
                : null;
    }

    @Override
    public Reducer<Long, Number> reducer(int ours, ReducibleFunction<?, ?> other, int theirs) {
        return null;
    }

    /** Drops the last parts of a key. */
    private record DropParts(int parts, DataType resultType) implements Reducer<Long, Number> {
        @Override
        public Number reduce(Long key) {
            if (key == null) {
                return null;
            }
            long kept = dropDigits(key, parts);
            return resultType.equals(DataTypes.LongType) ? (Number) kept : (Number) (int) kept;
        }
    }
}
