package phalanx.bridge;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.File;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ConcurrentLinkedDeque;
import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.TableInfo;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.errors.QueryCompilationErrors$;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceCreationResult;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Some;

/**
 * The planner process in Python, and every question that Java asks it. docs/BRIDGE.md specifies the
 * questions, their fields and their answers; {@code phalanx.spark.sql.planner.Planner} answers them.
 *
 * <p>A process answers one question after another, each a JSON text after its length.
 */
final class Planner {
    static final ObjectMapper JSON = new ObjectMapper();

    private static final String MODULE = "phalanx.spark.sql.planner";
    private static final int MAX_IDLE = 2;
    // The process that answered last is asked first: it has cached the query.
    private static final ConcurrentLinkedDeque<Planner> IDLE = new ConcurrentLinkedDeque<>();

    private final Process process;
    private final DataOutputStream questions;
    private final DataInputStream answers;

    // ── questions about a scan ───────────────────────────────────────────────────────────────

    /** Questions about one scan. Two are equal if they read the same rows. */
    static final class ScanQuestion {
        private final Source source;
        private final ObjectNode fields;

        ScanQuestion(
                Source source,
                StructType schema,
                CaseInsensitiveStringMap options,
                boolean changesRows) {
            this.source = source;
            PythonDataSourceCreationResult created =
                    source.getOrCreateDataSourceInPython(Source.NAME, options, new Some<>(schema));
            fields = JSON.createObjectNode();
            fields.put("query", UUID.randomUUID().toString());
            fields.put("source", Base64.getEncoder().encodeToString(created.dataSource()));
            fields.put("changes_rows", changesRows);
            fields.put("zone", SQLConf.get().sessionLocalTimeZone());
            fields.putArray("conditions");
        }

        private ScanQuestion(Source source, ObjectNode fields) {
            this.source = source;
            this.fields = fields;
        }

        ScanQuestion withConditions(Predicate[] conditions) {
            ObjectNode more = fields.deepCopy();
            more.set("conditions", ExpressionTree.of(conditions));
            return new ScanQuestion(source, more);
        }

        ScanQuestion withColumns(StructType columns) {
            ObjectNode more = fields.deepCopy();
            more.set("columns", toArray(columns.fieldNames()));
            return new ScanQuestion(source, more);
        }

        /** The question for the tasks; {@code limit} is null without one. */
        ScanQuestion withTasks(
                StructType columns,
                Integer limit,
                boolean isKeyed,
                ArrayNode runtimeFilters,
                int batchRows) {
            ObjectNode more = fields.deepCopy();
            more.put("schema", columns.json());
            more.put("limit", limit);
            more.put("keyed", isKeyed);
            more.set("runtime", runtimeFilters);
            more.put("batch_rows", batchRows);
            return new ScanQuestion(source, more);
        }

        /** Which of the conditions Python applies exactly. */
        JsonNode checkConditions() {
            return ask("conditions", source, fields);
        }

        /** The aggregates, if metadata answers them. */
        JsonNode aggregate(Expression[] groupBy, ArrayNode functions) {
            ObjectNode more = fields.deepCopy();
            more.set("by", ExpressionTree.of(groupBy));
            more.set("functions", functions);
            return ask("aggregate", source, more);
        }

        /** What the scan reads: its size, its partitioning, its runtime filters. */
        JsonNode describe() {
            return ask("describe", source, fields);
        }

        JsonNode planTasks() {
            return ask("tasks", source, fields);
        }

        @Override
        public boolean equals(Object other) {
            return other instanceof ScanQuestion question && rows().equals(question.rows());
        }

        @Override
        public int hashCode() {
            return rows().hashCode();
        }

        /** The fields without the query's id: what decides which rows are read. */
        private ObjectNode rows() {
            ObjectNode rows = fields.deepCopy();
            rows.remove("query");
            return rows;
        }
    }

    /** Plans the tasks of pickled work. */
    static JsonNode planWork(Source source, byte[] work, StructType columns, int batchRows) {
        ObjectNode fields = JSON.createObjectNode();
        fields.put("work", Base64.getEncoder().encodeToString(work));
        fields.put("schema", columns.json());
        fields.put("batch_rows", batchRows);
        return ask("work", source, fields);
    }

    // ── questions about a catalog ────────────────────────────────────────────────────────────

    /** One question about a table or namespace of a catalog, by its name or by a table's path. */
    static final class CatalogQuestion {
        private final ObjectNode fields = JSON.createObjectNode();

        private CatalogQuestion(String root, Map<String, String> storage) {
            fields.put("root", root);
            fields.set("storage", JSON.valueToTree(storage));
        }

        CatalogQuestion(String root, Map<String, String> storage, String[] name) {
            this(root, storage);
            fields.set("name", toArray(name));
        }

        CatalogQuestion(String root, Map<String, String> storage, String path) {
            this(root, storage);
            fields.put("path", path);
        }

        /** Loads a table, as of a snapshot or of a time in microseconds if one is not null. */
        JsonNode load(String version, Long time) {
            if (version != null) {
                fields.put("version", version);
            }
            if (time != null) {
                fields.put("time", time);
            }
            return ask("load");
        }

        JsonNode list() {
            return ask("list");
        }

        JsonNode create(TableInfo info) {
            define(info);
            return ask("create");
        }

        JsonNode stage(TableInfo info, boolean mayCreate, boolean mayReplace) {
            define(info);
            fields.put("may_create", mayCreate);
            fields.put("may_replace", mayReplace);
            return ask("stage");
        }

        private void define(TableInfo info) {
            fields.put("schema", info.schema().json());
            fields.set("partitioning", Transforms.toJson(info.partitions()));
            fields.set("properties", JSON.valueToTree(info.properties()));
        }

        /** Makes a staged table visible; takes the answer to {@code stage}. */
        JsonNode finish(JsonNode staged) {
            fields.set("new", staged.get("new"));
            fields.set("staged", staged.get("staged"));
            fields.put("may_replace", staged.get("may_replace").asBoolean());
            return ask("finish");
        }

        /** Removes a staged table; takes the answer to {@code stage}. */
        JsonNode abort(JsonNode staged) {
            fields.set("new", staged.get("new"));
            fields.set("staged", staged.get("staged"));
            return ask("abort");
        }

        JsonNode alter(TableChange[] changes) {
            ArrayNode trees = fields.putArray("changes");
            for (TableChange each : changes) {
                trees.add(toJson(each));
            }
            return ask("alter");
        }

        JsonNode drop() {
            return ask("drop");
        }

        JsonNode createNamespace() {
            return ask("create_namespace");
        }

        JsonNode dropNamespace() {
            return ask("drop_namespace");
        }

        /** The conditions as a predicate of Phalanx; an error if none means exactly the same. */
        JsonNode translate(Predicate[] conditions) {
            filter(conditions);
            return ask("where");
        }

        JsonNode delete(Predicate[] conditions) {
            filter(conditions);
            return ask("delete");
        }

        JsonNode canDelete(Predicate[] conditions) {
            filter(conditions);
            return ask("can_delete");
        }

        private void filter(Predicate[] conditions) {
            fields.set("conditions", ExpressionTree.of(conditions));
            ArrayNode texts = fields.putArray("texts");
            for (Predicate each : conditions) {
                texts.add(each.toString());
            }
            fields.put("zone", SQLConf.get().sessionLocalTimeZone());
        }

        /** Begins a change of rows, on a version of the manifest if it is not null. */
        JsonNode beginChanges(String command, String version) {
            fields.put("command", command);
            if (version != null) {
                fields.put("version", version);
            }
            return ask("begin_changes");
        }

        JsonNode listPartitions() {
            return ask("partitions");
        }

        private JsonNode ask(String name) {
            JsonNode answer = send(name, Source.create(), fields);
            if (answer.has("error")) {
                String error = answer.get("error").asText();
                throw new InvalidRequest(error.replaceFirst("^phalanx\\.[\\w.]+: ", ""));
            }
            return answer;
        }
    }

    private static ObjectNode toJson(TableChange change) {
        ObjectNode tree = JSON.createObjectNode();
        if (change instanceof TableChange.ColumnChange column) {
            tree.set("path", toArray(column.fieldNames()));
        }
        if (change instanceof TableChange.AddColumn add) {
            tree.put("change", "add");
            tree.put("type", add.dataType().json());
            tree.put("nullable", add.isNullable());
            tree.put("position", add.position() == null ? null : add.position().toString());
            tree.put("comment", add.comment());
            tree.put("default", add.defaultValue() == null ? null : add.defaultValue().getSql());
        } else if (change instanceof TableChange.DeleteColumn drop) {
            tree.put("change", "drop");
            tree.put("if_exists", drop.ifExists());
        } else if (change instanceof TableChange.RenameColumn rename) {
            tree.put("change", "rename");
            tree.put("new", rename.newName());
        } else if (change instanceof TableChange.UpdateColumnType promote) {
            tree.put("change", "promote");
            tree.put("type", promote.newDataType().json());
        } else if (change instanceof TableChange.SetProperty set) {
            tree.put("change", "set");
            tree.put("key", set.property());
            tree.put("value", set.value());
        } else {
            tree.put("change", change.getClass().getSimpleName());
        }
        return tree;
    }

    private static ArrayNode toArray(String[] texts) {
        ArrayNode array = JSON.createArrayNode();
        for (String text : texts) {
            array.add(text);
        }
        return array;
    }

    // ── the process ──────────────────────────────────────────────────────────────────────────

    private Planner(PythonFunction python) throws IOException {
        ProcessBuilder builder = new ProcessBuilder(python.pythonExec(), "-m", MODULE);
        Map<String, String> environment = builder.environment();
        List<String> paths = new ArrayList<>();
        paths.add(PythonUtils.sparkPythonPath());
        for (String path :
                new String[] {python.envVars().get("PYTHONPATH"), environment.get("PYTHONPATH")}) {
            if (path != null && !path.isEmpty()) {
                paths.add(path);
            }
        }
        environment.putAll(python.envVars());
        environment.put("PYTHONPATH", String.join(File.pathSeparator, paths));
        // Do not import modules from the working directory.
        environment.put("PYTHONSAFEPATH", "1");
        builder.redirectError(ProcessBuilder.Redirect.INHERIT);
        process = builder.start();
        questions = new DataOutputStream(new BufferedOutputStream(process.getOutputStream()));
        answers = new DataInputStream(process.getInputStream());
    }

    /** Asks a question about a scan. An error in Python becomes an error of Spark's analysis. */
    private static JsonNode ask(String name, Source source, ObjectNode fields) {
        JsonNode answer = send(name, source, fields);
        if (answer.has("error")) {
            throw failure(answer.get("error").asText());
        }
        return answer;
    }

    /** Sends a question, and returns the answer, which may be an error. */
    private static JsonNode send(String name, Source source, ObjectNode fields) {
        ObjectNode question = fields.deepCopy();
        question.put("ask", name);
        try {
            return send(source.source().dataSourceCls(), JSON.writeValueAsBytes(question));
        } catch (IOException error) {
            throw failure("the planner process in Python has ended: " + error.getMessage());
        }
    }

    private static JsonNode send(PythonFunction python, byte[] question) throws IOException {
        Planner idle = IDLE.pollFirst();
        if (idle != null) {
            try {
                return idle.exchange(question);
            } catch (IOException error) {
                // Something ended this process; a new one gives the same answer.
                idle.process.destroy();
            }
        }
        Planner started = new Planner(python);
        try {
            return started.exchange(question);
        } catch (IOException error) {
            started.process.destroy();
            throw error;
        }
    }

    private JsonNode exchange(byte[] question) throws IOException {
        questions.writeInt(question.length);
        questions.write(question);
        questions.flush();
        byte[] answer = new byte[answers.readInt()];
        answers.readFully(answer);
        if (IDLE.size() < MAX_IDLE) {
            IDLE.addFirst(this);
        } else {
            process.destroy();
        }
        return JSON.readTree(answer);
    }

    private static RuntimeException failure(String reason) {
        Throwable error =
                QueryCompilationErrors$.MODULE$.pythonDataSourceError("plan", "read", reason);
        return rethrow(error);
    }

    /** Throws a checked exception unchecked: Spark's errors of analysis are Scala's. */
    @SuppressWarnings("unchecked")
    private static <E extends Throwable> RuntimeException rethrow(Throwable error) throws E {
        throw (E) error;
    }
}
