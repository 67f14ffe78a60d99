package phalanx.bridge;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** What a scan is told of the query around it, among its options. */
record Hints(boolean joins, List<String> gathered) {
    private static final String JOINS = "phalanx.joins";
    private static final String GATHERED = "phalanx.gathered";

    CaseInsensitiveStringMap in(CaseInsensitiveStringMap options) {
        Map<String, String> more = new HashMap<>(options.asCaseSensitiveMap());
        more.put(JOINS, String.valueOf(joins));
        more.put(GATHERED, String.join("\n", gathered));
        return new CaseInsensitiveStringMap(more);
    }

    /** The hints among options; without any, all columns may be of use. */
    static Hints of(CaseInsensitiveStringMap options) {
        String names = options.get(GATHERED);
        return new Hints(
                options.getBoolean(JOINS, false),
                names == null ? null : List.of(names.split("\n")));
    }

    /** The options that the user gave. */
    static CaseInsensitiveStringMap without(CaseInsensitiveStringMap options) {
        Map<String, String> others = new HashMap<>(options.asCaseSensitiveMap());
        others.keySet().removeIf(name -> name.equalsIgnoreCase(JOINS));
        others.keySet().removeIf(name -> name.equalsIgnoreCase(GATHERED));
        return new CaseInsensitiveStringMap(others);
    }

    boolean gathersBy(String column) {
        return gathered == null || gathered.contains(column);
    }
}
