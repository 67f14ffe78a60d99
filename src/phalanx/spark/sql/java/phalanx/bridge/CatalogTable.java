package phalanx.bridge;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A table or metadata table of a catalog, read-only, at the state at which it was loaded. */
class CatalogTable implements SupportsRead {
    final CatalogSettings settings;
    final JsonNode loaded;
    private final String name;
    private final StructType schema;

    CatalogTable(CatalogSettings settings, String name, JsonNode loaded) {
        this.settings = settings;
        this.name = settings.catalog() + "." + name;
        this.loaded = loaded;
        this.schema = (StructType) DataType.fromJson(loaded.get("schema").asText());
    }

    final String path() {
        return loaded.get("path").asText();
    }

    @Override
    public String name() {
        return name;
    }

    @Override
    public StructType schema() {
        return schema;
    }

    @Override
    public Transform[] partitioning() {
        return Transforms.of(loaded.get("partitioning"));
    }

    @Override
    public Map<String, String> properties() {
        return texts(loaded.get("properties"));
    }

    @Override
    public String version() {
        return loaded.get("version").isNull() ? null : loaded.get("version").asText();
    }

    @Override
    public Set<TableCapability> capabilities() {
        return loaded.get("streams").asBoolean()
                ? Set.of(TableCapability.BATCH_READ, TableCapability.MICRO_BATCH_READ)
                : Set.of(TableCapability.BATCH_READ);
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
        return BridgedTable.scanBuilder(Source.create(), schema, readOptions(given));
    }

    /** The options of a query, with the table's location and the snapshot that was loaded. */
    final CaseInsensitiveStringMap readOptions(CaseInsensitiveStringMap given) {
        Map<String, String> options = options(given);
        Map<String, String> own = texts(loaded.get("options"));
        // An older snapshot is fixed by the user; the newest one is only pinned.
        options.putAll(loaded.get("read_only").asBoolean() ? own : Hints.pin(own));
        return new CaseInsensitiveStringMap(options);
    }

    /** The options of a query, with the table's location. */
    final Map<String, String> options(CaseInsensitiveStringMap given) {
        settings.check(name, given);
        Map<String, String> options = new HashMap<>(given.asCaseSensitiveMap());
        // Spark has loaded that snapshot already.
        options.keySet().removeIf(key -> key.toLowerCase().matches("(version|timestamp)asof"));
        options.putAll(settings.options(path()));
        return options;
    }

    static Map<String, String> texts(JsonNode object) {
        Map<String, String> found = new HashMap<>();
        object.properties().forEach(each -> found.put(each.getKey(), each.getValue().asText()));
        return found;
    }
}
