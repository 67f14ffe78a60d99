package phalanx.bridge;

import org.apache.spark.sql.catalyst.analysis.NoSuchFunctionException;
import org.apache.spark.sql.connector.catalog.FunctionCatalog;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.functions.BoundFunction;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** The transforms of partition fields as functions that Spark can evaluate. */
public final class Functions implements FunctionCatalog {
    private static final String[] NAMES = {
        "bucket", "year", "month", "day", "hour", "year_month", "year_month_day",
        "year_month_day_hour"
    };

    @Override
    public void initialize(String name, CaseInsensitiveStringMap options) {}

    @Override
    public String name() {
        return Source.NAME;
    }

    @Override
    public Identifier[] listFunctions(String[] namespace) {
        Identifier[] found = new Identifier[namespace.length == 0 ? NAMES.length : 0];
        for (int i = 0; i < found.length; i++) {
            found[i] = Identifier.of(namespace, NAMES[i]);
        }
        return found;
    }

    @Override
    public UnboundFunction loadFunction(Identifier identifier) throws NoSuchFunctionException {
        for (String name : NAMES) {
            if (identifier.namespace().length == 0 && name.equals(identifier.name())) {
                return new Unbound(name);
            }
        }
        throw new NoSuchFunctionException(identifier);
    }

    private record Unbound(String name) implements UnboundFunction {
        @Override
        public BoundFunction bind(StructType arguments) {
            DataType type = arguments.apply(arguments.length() - 1).dataType();
            if (name.equals("bucket")) {
                return new Bucket(type);
            }
            return CalendarChain.parts(name) > 1
                    ? new CalendarChain(name, type)
                    : new CalendarPart(name, type);
        }

        @Override
        public String description() {
            return name + " of the partition format";
        }
    }
}
