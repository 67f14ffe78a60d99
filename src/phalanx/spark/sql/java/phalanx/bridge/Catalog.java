package phalanx.bridge;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeSet;
import org.apache.spark.SparkEnv;
import org.apache.spark.sql.catalyst.analysis.NamespaceAlreadyExistsException;
import org.apache.spark.sql.catalyst.analysis.NoSuchFunctionException;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.NonEmptyNamespaceException;
import org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException;
import org.apache.spark.sql.connector.catalog.FunctionCatalog;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.NamespaceChange;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.catalog.StagingTableCatalog;
import org.apache.spark.sql.connector.catalog.SupportsNamespaces;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.TableInfo;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Tuple2;

/** A Spark catalog over a folder of tables: {@code spark.sql.catalog.<name>.root}. */
public final class Catalog implements StagingTableCatalog, SupportsNamespaces, FunctionCatalog {
    private final Functions functions = new Functions();
    private String name;
    private CatalogSettings settings;

    @Override
    public void initialize(String given, CaseInsensitiveStringMap options) {
        if (!Source.isForThisSpark()) {
            throw new InvalidRequest(
                    "Cannot use the catalog " + given + ": its classes are for another version of"
                            + " Spark. Let phalanx.spark.configure set spark.jars.");
        }
        checkSettings(given, options.asCaseSensitiveMap());
        name = given;
        settings = new CatalogSettings(given, options);
    }

    /**
     * Refuses a session that changed settings of a catalog which the application defined. Otherwise
     * the session of another user, such as a Connect client, could send the catalog's credentials to
     * any server. A session may define catalogs of its own.
     */
    private static void checkSettings(String name, Map<String, String> options) {
        String prefix = "spark.sql.catalog." + name;
        Map<String, String> started = new HashMap<>();
        boolean isOwn = true;
        for (Tuple2<String, String> each : SparkEnv.get().conf().getAll()) {
            if (each._1().startsWith(prefix + ".")) {
                started.put(each._1().substring(prefix.length() + 1), each._2());
            }
            isOwn &= !each._1().equals(prefix) && !each._1().startsWith(prefix + ".");
        }
        if (isOwn || started.equals(options)) {
            return;
        }
        Set<String> changed = new TreeSet<>(started.keySet());
        changed.addAll(options.keySet());
        changed.removeIf(key -> Objects.equals(started.get(key), options.get(key)));
        throw new InvalidRequest(
                String.format(
                        "Cannot use the catalog %s: the session has changed %s.%s, which was set"
                                + " when the application started. Undo that, or define a catalog"
                                + " with another name.",
                        name, prefix, String.join(", " + prefix + ".", changed)));
    }

    @Override
    public String name() {
        return name;
    }

    // ── tables ───────────────────────────────────────────────────────────────────────────────

    @Override
    public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
        JsonNode names = list(namespace).get("tables");
        Identifier[] found = new Identifier[names.size()];
        for (int i = 0; i < found.length; i++) {
            found[i] = Identifier.of(namespace, names.get(i).asText());
        }
        return found;
    }

    @Override
    public Table loadTable(Identifier table) throws NoSuchTableException {
        return open(table, settings.about(table).load(null, null));
    }

    @Override
    public Table loadTable(Identifier table, String version) throws NoSuchTableException {
        return open(table, settings.about(table).load(version, null));
    }

    @Override
    public Table loadTable(Identifier table, long microseconds) throws NoSuchTableException {
        return open(table, settings.about(table).load(null, microseconds));
    }

    private Table open(Identifier table, JsonNode loaded) throws NoSuchTableException {
        if (loaded.has("missing")) {
            throw new NoSuchTableException(table);
        }
        if (loaded.get("read_only").asBoolean()) {
            return new CatalogTable(settings, table.toString(), loaded);
        }
        return loaded.get("row_level").asBoolean()
                ? new RowLevelTable(settings, table, loaded)
                : new WritableTable(settings, table, loaded);
    }

    @Override
    public Table createTable(Identifier table, TableInfo info) throws TableAlreadyExistsException {
        checkConstraints(table, info);
        JsonNode loaded = settings.about(table).create(info);
        if (loaded.has("exists")) {
            throw new TableAlreadyExistsException(table);
        }
        return new WritableTable(settings, table, loaded);
    }

    private static void checkConstraints(Identifier table, TableInfo info) {
        if (info.constraints().length > 0) {
            throw new InvalidRequest(
                    "Cannot create " + table + " with constraints: tables have none. Leave out "
                            + Arrays.toString(info.constraints()) + ".");
        }
    }

    @Override
    public Table alterTable(Identifier table, TableChange... changes) throws NoSuchTableException {
        return open(table, settings.about(table).alter(changes));
    }

    @Override
    public boolean dropTable(Identifier table) {
        return settings.about(table).drop().get("dropped").asBoolean();
    }

    @Override
    public boolean purgeTable(Identifier table) {
        return dropTable(table);
    }

    @Override
    public void renameTable(Identifier from, Identifier to) {
        throw new InvalidRequest(
                "Cannot rename " + from + ": the name of a table is the name of its folder. Create"
                        + " a new one with CREATE TABLE … AS SELECT.");
    }

    // ── staged tables: visible once their rows are written ───────────────────────────────────

    @Override
    public StagedTable stageCreate(Identifier table, TableInfo info)
            throws TableAlreadyExistsException {
        JsonNode staged = stage(table, info, true, false);
        if (staged.has("exists")) {
            throw new TableAlreadyExistsException(table);
        }
        return new WritableTable.Staged(settings, table, staged);
    }

    @Override
    public StagedTable stageReplace(Identifier table, TableInfo info) throws NoSuchTableException {
        JsonNode staged = stage(table, info, false, true);
        if (staged.has("missing")) {
            throw new NoSuchTableException(table);
        }
        return new WritableTable.Staged(settings, table, staged);
    }

    @Override
    public StagedTable stageCreateOrReplace(Identifier table, TableInfo info) {
        return new WritableTable.Staged(settings, table, stage(table, info, true, true));
    }

    private JsonNode stage(
            Identifier table, TableInfo info, boolean mayCreate, boolean mayReplace) {
        checkConstraints(table, info);
        return settings.about(table).stage(info, mayCreate, mayReplace);
    }

    // ── namespaces ───────────────────────────────────────────────────────────────────────────

    private JsonNode list(String[] namespace) throws NoSuchNamespaceException {
        JsonNode found = settings.about(namespace).list();
        if (found.has("missing")) {
            throw new NoSuchNamespaceException(namespace);
        }
        return found;
    }

    @Override
    public String[][] listNamespaces() throws NoSuchNamespaceException {
        return listNamespaces(new String[0]);
    }

    @Override
    public String[][] listNamespaces(String[] namespace) throws NoSuchNamespaceException {
        JsonNode names = list(namespace).get("namespaces");
        String[][] found = new String[names.size()][];
        for (int i = 0; i < found.length; i++) {
            found[i] = Arrays.copyOf(namespace, namespace.length + 1);
            found[i][namespace.length] = names.get(i).asText();
        }
        return found;
    }

    @Override
    public Map<String, String> loadNamespaceMetadata(String[] namespace)
            throws NoSuchNamespaceException {
        list(namespace);
        return Map.of();
    }

    @Override
    public void createNamespace(String[] namespace, Map<String, String> properties)
            throws NamespaceAlreadyExistsException {
        if (settings.about(namespace).createNamespace().has("exists")) {
            throw new NamespaceAlreadyExistsException(namespace);
        }
    }

    @Override
    public void alterNamespace(String[] namespace, NamespaceChange... changes) {
        throw new InvalidRequest("Cannot change a namespace of Phalanx: it is only a folder.");
    }

    @Override
    public boolean dropNamespace(String[] namespace, boolean cascade)
            throws NoSuchNamespaceException, NonEmptyNamespaceException {
        JsonNode done = settings.about(namespace).dropNamespace();
        if (done.has("missing")) {
            throw new NoSuchNamespaceException(namespace);
        }
        if (done.has("filled")) {
            throw new NonEmptyNamespaceException(namespace);
        }
        return true;
    }

    // ── functions ────────────────────────────────────────────────────────────────────────────

    @Override
    public Identifier[] listFunctions(String[] namespace) {
        return functions.listFunctions(namespace);
    }

    @Override
    public UnboundFunction loadFunction(Identifier function) throws NoSuchFunctionException {
        return functions.loadFunction(function);
    }
}
