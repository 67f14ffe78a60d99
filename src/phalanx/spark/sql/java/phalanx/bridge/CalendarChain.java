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
 * The first parts of a date or timestamp in UTC, from the year on, as the digits of one number:
 * year and month of 2025-12-31 are 202512. Fewer parts of it are its first digits, so tables by
 * months and by years can be joined.
 */
record CalendarChain(String name, DataType type)
        implements ScalarFunction<Long>, ReducibleFunction<Long, Number> {
    /** The names, each with one part more than the one before. */
    static final List<String> NAMES =
            List.of("year", "year_month", "year_month_day", "year_month_day_hour");

    private static final long BASE = 100;
    private static final long HOUR = 3_600_000_000L;
    private static final int ALL = 4;

    CalendarChain {
        CalendarPart.check(parts(name) == ALL ? "hour" : "year", type);
    }

    /** How many parts a chain has; 0 for what is no chain. */
    static int parts(String name) {
        return NAMES.indexOf(name) + 1;
    }

    /** The same on both sides of a join. */
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
        return firstDigits(days * BASE + Math.floorMod(hours, 24L), ALL - parts(name));
    }

    private static long firstDigits(long number, int fewer) {
        for (int i = 0; i < fewer; i++) {
            number = Math.floorDiv(number, BASE);
        }
        return number;
    }

    @Override
    public Reducer<Long, Number> reducer(ReducibleFunction<?, ?> other) {
        if (other instanceof CalendarPart year && year.isYear() && year.type().equals(type)) {
            return new Fewer(parts(name) - 1, DataTypes.IntegerType);
        }
        boolean isShorter =
                other instanceof CalendarChain chain
                        && chain.type.equals(type)
                        && parts(chain.name) < parts(name);
        return isShorter
                ? new Fewer(parts(name) - parts(((CalendarChain) other).name), DataTypes.LongType)
                : null;
    }

    @Override
    public Reducer<Long, Number> reducer(int ours, ReducibleFunction<?, ?> other, int theirs) {
        return null;
    }

    /** A key without its last parts. */
    private record Fewer(int parts, DataType resultType) implements Reducer<Long, Number> {
        @Override
        public Number reduce(Long key) {
            if (key == null) {
                return null;
            }
            long kept = firstDigits(key, parts);
            return resultType.equals(DataTypes.LongType) ? (Number) kept : (Number) (int) kept;
        }
    }
}
