package phalanx.bridge;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Facts about the surrounding query that a scan gets through its options. */
record Hints(boolean joins, List<String> grouping, boolean isPinned) {
    private static final String JOINS = "phalanx.joins";
    private static final String GROUPING = "phalanx.gathered";
    private static final String PINNED = "phalanx.pinned";
    private static final String SNAPSHOT = "snapshot";

    Hints(boolean joins, List<String> grouping) {
        this(joins, grouping, false);
    }

    CaseInsensitiveStringMap addTo(CaseInsensitiveStringMap options) {
        Map<String, String> more = new HashMap<>(options.asCaseSensitiveMap());
        more.put(JOINS, String.valueOf(joins));
        more.put(GROUPING, String.join("\n", grouping));
        return new CaseInsensitiveStringMap(more);
    }

    /** Reads hints from options. Without any, every column may be a grouping column. */
    static Hints of(CaseInsensitiveStringMap options) {
        String names = options.get(GROUPING);
        return new Hints(
                options.getBoolean(JOINS, false),
                names == null ? null : List.of(names.split("\n")),
                options.getBoolean(PINNED, false));
    }

    /** The options that the user set. */
    static CaseInsensitiveStringMap remove(CaseInsensitiveStringMap options) {
        return remove(options, List.of(JOINS, GROUPING, PINNED));
    }

    /** Marks the snapshot option as the newest snapshot at load time, not the user's choice. */
    static Map<String, String> pin(Map<String, String> options) {
        if (options.containsKey(SNAPSHOT)) {
            options.put(PINNED, "true");
        }
        return options;
    }

    /** Whether the user chose a snapshot, which cannot change any more. */
    boolean isPastSnapshot(CaseInsensitiveStringMap options) {
        return options.containsKey(SNAPSHOT) && !isPinned;
    }

    /** The options of a stream, which continues past the snapshot at load time. */
    static CaseInsensitiveStringMap unpin(CaseInsensitiveStringMap options) {
        return remove(options, List.of(SNAPSHOT));
    }

    private static CaseInsensitiveStringMap remove(
            CaseInsensitiveStringMap options, List<String> names) {
        Map<String, String> others = new HashMap<>(options.asCaseSensitiveMap());
        others.keySet().removeIf(key -> names.stream().anyMatch(key::equalsIgnoreCase));
        return new CaseInsensitiveStringMap(others);
    }

    boolean groupsBy(String column) {
        return grouping == null || grouping.contains(column);
    }
}
