package phalanx.bridge;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
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

/** A folder of tables, and of folders with tables: {@code spark.sql.catalog.<name>.root}. */
public final class Catalog implements StagingTableCatalog, SupportsNamespaces, FunctionCatalog {
    private final Functions functions = new Functions();
    private String name;
    private CatalogSettings tables;

    @Override
    public void initialize(String given, CaseInsensitiveStringMap options) {
        if (!Source.isForThisSpark()) {
            throw new CatalogSettings.Refused(
                    "Cannot use the catalog " + given + ": its classes are for another version of"
                            + " Spark. Leave spark.jars to phalanx.spark.configure.");
        }
        checkSettings(given, options.asCaseSensitiveMap());
        name = given;
        tables = new CatalogSettings(given, options);
    }

    /**
     * Refuses settings of a session that differ from those that the application began with: a
     * session of somebody else, as a client of Connect, would send the credentials of a catalog
     * wherever it says. A catalog that only the session names is the session's own.
     */
    private static void checkSettings(String name, Map<String, String> options) {
        String prefix = "spark.sql.catalog." + name;
        Map<String, String> begun = new HashMap<>();
        boolean isOwn = true;
        for (Tuple2<String, String> each : SparkEnv.get().conf().getAll()) {
            if (each._1().startsWith(prefix + ".")) {
                begun.put(each._1().substring(prefix.length() + 1), each._2());
            }
            isOwn &= !each._1().equals(prefix) && !each._1().startsWith(prefix + ".");
        }
        if (isOwn || begun.equals(options)) {
            return;
        }
        Set<String> changed = new TreeSet<>(begun.keySet());
        changed.addAll(options.keySet());
        changed.removeIf(key -> Objects.equals(begun.get(key), options.get(key)));
        throw new CatalogSettings.Refused(
                String.format(
                        "Cannot use the catalog %s: the session has changed %s.%s, which was set"
                                + " when the application began. Undo that, or define a catalog"
                                + " under a name of your own.",
                        name, prefix, String.join(", " + prefix + ".", changed)));
    }

    @Override
    public String name() {
        return name;
    }

    // ── tables ───────────────────────────────────────────────────────────────────────────────

    @Override
    public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
        JsonNode names = listed(namespace).get("tables");
        Identifier[] found = new Identifier[names.size()];
        for (int i = 0; i < found.length; i++) {
            found[i] = Identifier.of(namespace, names.get(i).asText());
        }
        return found;
    }

    @Override
    public Table loadTable(Identifier table) throws NoSuchTableException {
        return table(table, tables.about(table).ask("load"));
    }

    @Override
    public Table loadTable(Identifier table, String version) throws NoSuchTableException {
        return table(table, tables.about(table).with("version", version).ask("load"));
    }

    @Override
    public Table loadTable(Identifier table, long microseconds) throws NoSuchTableException {
        return table(table, tables.about(table).with("time", microseconds).ask("load"));
    }

    private Table table(Identifier table, JsonNode loaded) throws NoSuchTableException {
        if (loaded.has("missing")) {
            throw new NoSuchTableException(table);
        }
        if (loaded.get("read_only").asBoolean()) {
            return new CatalogTable(tables, table.toString(), loaded);
        }
        return loaded.get("row_level").asBoolean()
                ? new RowLevelTable(tables, table, loaded)
                : new WritableTable(tables, table, loaded);
    }

    @Override
    public Table createTable(Identifier table, TableInfo info) throws TableAlreadyExistsException {
        return new WritableTable(tables, table, made(table, info, "create", true, false));
    }

    private JsonNode made(
            Identifier table, TableInfo info, String how, boolean mayCreate, boolean mayReplace)
            throws TableAlreadyExistsException {
        if (info.constraints().length > 0) {
            throw new CatalogSettings.Refused(
                    "Cannot create " + table + " with constraints: a table has none. Leave out "
                            + Arrays.toString(info.constraints()) + ".");
        }
        JsonNode loaded =
                tables.about(table)
                        .with("schema", info.schema().json())
                        .with("partitioning", Transforms.told(info.partitions()))
                        .with("properties", (JsonNode) Planner.JSON.valueToTree(info.properties()))
                        .with("may_create", mayCreate)
                        .with("may_replace", mayReplace)
                        .ask(how);
        if (loaded.has("exists")) {
            throw new TableAlreadyExistsException(table);
        }
        return loaded;
    }

    @Override
    public Table alterTable(Identifier table, TableChange... changes) throws NoSuchTableException {
        ArrayNode told = Planner.JSON.createArrayNode();
        for (TableChange each : changes) {
            told.add(told(each));
        }
        return table(table, tables.about(table).with("changes", told).ask("alter"));
    }

    private static ObjectNode told(TableChange change) {
        ObjectNode told = Planner.JSON.createObjectNode();
        if (change instanceof TableChange.ColumnChange column) {
            told.set("path", CatalogSettings.names(column.fieldNames()));
        }
        if (change instanceof TableChange.AddColumn add) {
            told.put("change", "add");
            told.put("type", add.dataType().json());
            told.put("nullable", add.isNullable());
            told.put("position", add.position() == null ? null : add.position().toString());
            told.put("comment", add.comment());
            told.put("default", add.defaultValue() == null ? null : add.defaultValue().getSql());
        } else if (change instanceof TableChange.DeleteColumn drop) {
            told.put("change", "drop");
            told.put("if_exists", drop.ifExists());
        } else if (change instanceof TableChange.RenameColumn rename) {
            told.put("change", "rename");
            told.put("new", rename.newName());
        } else if (change instanceof TableChange.UpdateColumnType promote) {
            told.put("change", "promote");
            told.put("type", promote.newDataType().json());
        } else if (change instanceof TableChange.SetProperty set) {
            told.put("change", "set");
            told.put("key", set.property());
            told.put("value", set.value());
        } else {
            told.put("change", change.getClass().getSimpleName());
        }
        return told;
    }

    @Override
    public boolean dropTable(Identifier table) {
        return tables.about(table).ask("drop").get("dropped").asBoolean();
    }

    @Override
    public boolean purgeTable(Identifier table) {
        return dropTable(table);
    }

    @Override
    public void renameTable(Identifier from, Identifier to) {
        throw new CatalogSettings.Refused(
                "Cannot rename " + from + ": the name of a table is its folder's. Make a new one"
                        + " with CREATE TABLE … AS SELECT.");
    }

    // ── tables that become visible with their rows ───────────────────────────────────────────

    @Override
    public StagedTable stageCreate(Identifier table, TableInfo info)
            throws TableAlreadyExistsException {
        return new WritableTable.Staged(tables, table, made(table, info, "stage", true, false));
    }

    @Override
    public StagedTable stageReplace(Identifier table, TableInfo info) throws NoSuchTableException {
        JsonNode loaded = replaced(table, info, false);
        if (loaded.has("missing")) {
            throw new NoSuchTableException(table);
        }
        return new WritableTable.Staged(tables, table, loaded);
    }

    @Override
    public StagedTable stageCreateOrReplace(Identifier table, TableInfo info) {
        return new WritableTable.Staged(tables, table, replaced(table, info, true));
    }

    private JsonNode replaced(Identifier table, TableInfo info, boolean mayCreate) {
        try {
            return made(table, info, "stage", mayCreate, true);
        } catch (TableAlreadyExistsException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    // ── namespaces ───────────────────────────────────────────────────────────────────────────

    private JsonNode listed(String[] namespace) throws NoSuchNamespaceException {
        JsonNode found = tables.about(namespace).ask("list");
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
        JsonNode names = listed(namespace).get("namespaces");
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
        listed(namespace);
        return Map.of();
    }

    @Override
    public void createNamespace(String[] namespace, Map<String, String> properties)
            throws NamespaceAlreadyExistsException {
        if (tables.about(namespace).ask("create_namespace").has("exists")) {
            throw new NamespaceAlreadyExistsException(namespace);
        }
    }

    @Override
    public void alterNamespace(String[] namespace, NamespaceChange... changes) {
        throw new CatalogSettings.Refused("Cannot change a namespace of Phalanx: it is just a folder.");
    }

    @Override
    public boolean dropNamespace(String[] namespace, boolean cascade)
            throws NoSuchNamespaceException, NonEmptyNamespaceException {
        JsonNode done = tables.about(namespace).ask("drop_namespace");
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
