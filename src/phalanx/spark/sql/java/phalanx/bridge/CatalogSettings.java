package phalanx.bridge;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import org.apache.spark.SparkThrowable;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** What Python is asked about the tables of a catalog, which are in a folder. */
final class CatalogSettings {
    private static final String ROOT = "root";
    private static final String STORAGE = "storage.";
    private static final String PATH = "path";
    private static final Set<String> OF_THE_CATALOG =
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
                throw new Refused(
                        String.format(
                                "Cannot use spark.sql.catalog.%s.%s: there is no such setting."
                                        + " Expected root, and storage.<key> for what an object"
                                        + " store needs.",
                                catalog, key));
            }
        }
        root = options.get(ROOT);
        if (root == null) {
            throw new Refused(
                    String.format(
                            "Cannot use the catalog %s: it has no folder. Set"
                                    + " spark.sql.catalog.%s.root to a path or a URI.",
                            catalog, catalog));
        }
    }

    String catalog() {
        return catalog;
    }

    /** A source that knows nothing yet: each keeps the first table that it is asked for. */
    static Source source() {
        Source source = new Source();
        source.setShortName(Source.NAME);
        return source;
    }

    Question about(Identifier table) {
        ArrayNode name = names(table.namespace());
        name.add(table.name());
        return about(name);
    }

    Question about(String[] namespace) {
        return about(names(namespace));
    }

    private Question about(ArrayNode name) {
        ObjectNode question = Planner.JSON.createObjectNode();
        question.put("catalog", catalog);
        question.put("root", root);
        question.set("storage", Planner.JSON.valueToTree(storage));
        question.set("name", name);
        return new Question(question);
    }

    /** The options with which a source finds a table. */
    Map<String, String> options(String path) {
        Map<String, String> options = new HashMap<>();
        options.put(PATH, path);
        storage.forEach((key, value) -> options.put(STORAGE + key, value));
        return options;
    }

    /**
     * Refuses options of a query that say where a table is, or how its store is reached: they would
     * send what the catalog knows, its credentials too, wherever the query says.
     */
    void check(String table, CaseInsensitiveStringMap given) {
        checkNotInternal(given);
        for (String key : given.keySet()) {
            if (key.startsWith(STORAGE) || OF_THE_CATALOG.contains(key)) {
                throw new Refused(
                        String.format(
                                "Cannot use %s with the option '%s': where a table is, and how its"
                                        + " store is reached, is set for the catalog alone. Leave"
                                        + " it out, or set spark.sql.catalog.%s.storage.<key>.",
                                table, key, catalog));
            }
        }
    }

    /** Refuses the option by which the parts of a change of rows know each other. */
    static void checkNotInternal(CaseInsensitiveStringMap given) {
        if (given.containsKey(RowChanges.OPTION)) {
            throw new Refused(
                    String.format(
                            "Cannot use the option '%s': Spark's UPDATE, MERGE and DELETE pass a"
                                    + " change of rows by it. Leave it out.",
                            RowChanges.OPTION));
        }
    }

    static ArrayNode names(String[] parts) {
        ArrayNode names = Planner.JSON.createArrayNode();
        for (String part : parts) {
            names.add(part);
        }
        return names;
    }

    /** One question, which is told what it needs to know. */
    static final class Question {
        private final ObjectNode about;

        private Question(ObjectNode about) {
            this.about = about;
        }

        Question with(String key, String value) {
            about.put(key, value);
            return this;
        }

        Question with(String key, long value) {
            about.put(key, value);
            return this;
        }

        Question with(String key, boolean value) {
            about.put(key, value);
            return this;
        }

        Question with(String key, JsonNode value) {
            about.set(key, value);
            return this;
        }

        Question where(Predicate[] conditions) {
            ArrayNode texts = about.putArray("texts");
            for (Predicate each : conditions) {
                texts.add(each.toString());
            }
            about.put("zone", SQLConf.get().sessionLocalTimeZone());
            return with("conditions", ExpressionTree.of(conditions));
        }

        JsonNode ask(String what) {
            about.put("do", what);
            JsonNode answer = Planner.answer(source().source().dataSourceCls(), about);
            if (answer.has("error")) {
                String why = answer.get("error").asText();
                throw new Refused(why.replaceFirst("^phalanx\\.[\\w.]+: ", ""));
            }
            return answer;
        }
    }

    /** What is refused, in one line; Spark shows what is its own kind of error as it is. */
    static final class Refused extends IllegalArgumentException implements SparkThrowable {
        Refused(String message) {
            super(message);
        }

        @Override
        public String getCondition() {
            return null;
        }
    }
}
