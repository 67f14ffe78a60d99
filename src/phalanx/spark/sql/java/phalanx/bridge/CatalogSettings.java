package phalanx.bridge;

import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** The settings of a catalog: its root folder, and what its object store needs. */
final class CatalogSettings {
    private static final String ROOT = "root";
    private static final String STORAGE = "storage.";
    private static final String PATH = "path";
    private static final Set<String> RESERVED_OPTIONS =
            Set.of(PATH, "storage_options", "trust_locations", "new_table");

    private final String catalog;
    private final String root;
    private final Map<String, String> storage = new HashMap<>();

    CatalogSettings(String catalog, CaseInsensitiveStringMap options) {
        this.catalog = catalog;
        for (Map.Entry<String, String> each : options.asCaseSensitiveMap().entrySet()) {
            String key = each.getKey();
            if (key.startsWith(STORAGE)) {
                storage.put(key.substring(STORAGE.length()), each.getValue());
            } else if (!key.equals(ROOT)) {
                throw new InvalidRequest(
                        String.format(
                                "Cannot use spark.sql.catalog.%s.%s: there is no such setting."
                                        + " Expected root, or storage.<key> for an option of the"
                                        + " object store.",
                                catalog, key));
            }
        }
        root = options.get(ROOT);
        if (root == null) {
            throw new InvalidRequest(
                    String.format(
                            "Cannot use the catalog %s: it has no folder. Set"
                                    + " spark.sql.catalog.%s.root to a path or a URI.",
                            catalog, catalog));
        }
    }

    String catalog() {
        return catalog;
    }

    /** A question about a table, by its name. */
    Planner.CatalogQuestion about(Identifier table) {
        String[] namespace = table.namespace();
        String[] name = Arrays.copyOf(namespace, namespace.length + 1);
        name[namespace.length] = table.name();
        return about(name);
    }

    /** A question about a namespace. */
    Planner.CatalogQuestion about(String[] name) {
        return new Planner.CatalogQuestion(root, storage, name);
    }

    /** A question about a loaded table, by its path. */
    Planner.CatalogQuestion aboutPath(String path) {
        return new Planner.CatalogQuestion(root, storage, path);
    }

    /** The options by which the source opens a table. */
    Map<String, String> options(String path) {
        Map<String, String> options = new HashMap<>();
        options.put(PATH, path);
        storage.forEach((key, value) -> options.put(STORAGE + key, value));
        return options;
    }

    /**
     * Refuses options of a query that set the location or the storage of a table: they could send
     * the credentials of the catalog anywhere.
     */
    void check(String table, CaseInsensitiveStringMap given) {
        checkNotInternal(given);
        for (String key : given.keySet()) {
            if (key.startsWith(STORAGE) || RESERVED_OPTIONS.contains(key)) {
                throw new InvalidRequest(
                        String.format(
                                "Cannot use %s with the option '%s': only the catalog sets the"
                                        + " location and the storage of its tables. Leave it out,"
                                        + " or set spark.sql.catalog.%s.storage.<key>.",
                                table, key, catalog));
            }
        }
    }

    /** Refuses the internal option that links the scan and the write of a change of rows. */
    static void checkNotInternal(CaseInsensitiveStringMap given) {
        if (given.containsKey(RowChanges.OPTION)) {
            throw new InvalidRequest(
                    String.format(
                            "Cannot use the option '%s': it is internal to Spark's UPDATE, MERGE and"
                                    + " DELETE. Leave it out.",
                            RowChanges.OPTION));
        }
    }
}
