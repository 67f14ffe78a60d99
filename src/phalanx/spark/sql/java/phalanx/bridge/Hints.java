package phalanx.bridge;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** What a scan is told of the query around it, among its options. */
record Hints(boolean joins, List<String> gathered, boolean pinned) {
    private static final String JOINS = "phalanx.joins";
    private static final String GATHERED = "phalanx.gathered";
    private static final String PINNED = "phalanx.pinned";
    private static final String SNAPSHOT = "snapshot";

    Hints(boolean joins, List<String> gathered) {
        this(joins, gathered, false);
    }

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
                names == null ? null : List.of(names.split("\n")),
                options.getBoolean(PINNED, false));
    }

    /** The options that the user gave. */
    static CaseInsensitiveStringMap without(CaseInsensitiveStringMap options) {
        return without(options, List.of(JOINS, GATHERED, PINNED));
    }

    /** Tells that the snapshot among the options is the one that was newest at the loading. */
    static Map<String, String> pinned(Map<String, String> options) {
        if (options.containsKey(SNAPSHOT)) {
            options.put(PINNED, "true");
        }
        return options;
    }

    /** Whether the options name an older state themselves, which nobody changes any more. */
    boolean isOfThePast(CaseInsensitiveStringMap options) {
        return options.containsKey(SNAPSHOT) && !pinned;
    }

    /** The options of a stream, which goes on from the snapshot that was newest at the loading. */
    static CaseInsensitiveStringMap beyondPin(CaseInsensitiveStringMap options) {
        return without(options, List.of(SNAPSHOT));
    }

    private static CaseInsensitiveStringMap without(
            CaseInsensitiveStringMap options, List<String> names) {
        Map<String, String> others = new HashMap<>(options.asCaseSensitiveMap());
        others.keySet().removeIf(key -> names.stream().anyMatch(key::equalsIgnoreCase));
        return new CaseInsensitiveStringMap(others);
    }

    boolean gathersBy(String column) {
        return gathered == null || gathered.contains(column);
    }
}
