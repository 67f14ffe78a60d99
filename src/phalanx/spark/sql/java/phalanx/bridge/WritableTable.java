package phalanx.bridge;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.catalog.SupportsDeleteV2;
import org.apache.spark.sql.connector.catalog.SupportsPartitionManagement;
import org.apache.spark.sql.connector.catalog.SupportsSchemaEvolution;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegralType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A table of a catalog that can be read and written. */
class WritableTable extends CatalogTable
        implements SupportsWrite,
                SupportsDeleteV2,
                SupportsPartitionManagement,
                SupportsSchemaEvolution {
    final Identifier identifier;
    private JsonNode partitions;

    WritableTable(CatalogSettings settings, Identifier identifier, JsonNode loaded) {
        super(settings, identifier.toString(), loaded);
        this.identifier = identifier;
    }

    final Planner.CatalogQuestion question() {
        return settings.aboutPath(path());
    }

    @Override
    public Set<TableCapability> capabilities() {
        return Set.of(
                TableCapability.BATCH_READ,
                TableCapability.MICRO_BATCH_READ,
                TableCapability.BATCH_WRITE,
                TableCapability.STREAMING_WRITE,
                TableCapability.TRUNCATE,
                TableCapability.OVERWRITE_BY_FILTER,
                TableCapability.OVERWRITE_DYNAMIC,
                // Spark adds new columns of the rows by ALTER TABLE before it writes them.
                TableCapability.AUTOMATIC_SCHEMA_EVOLUTION);
    }

    /**
     * Schema evolution adds new columns of the rows and widens numbers. Values of any other type are
     * cast, as without schema evolution.
     */
    @Override
    public boolean supportsColumnChange(TableChange.ColumnChange change) {
        if (!(change instanceof TableChange.UpdateColumnType update)) {
            return true;
        }
        String[] path = update.fieldNames();
        return path.length == 1
                && isWider(schema().apply(path[0]).dataType(), update.newDataType());
    }

    private static boolean isWider(DataType old, DataType type) {
        return old instanceof IntegralType && type instanceof IntegralType
                        && type.defaultSize() > old.defaultSize()
                || old instanceof FloatType && type instanceof DoubleType
                || old instanceof DecimalType from
                        && type instanceof DecimalType to
                        && to.scale() == from.scale()
                        && to.precision() > from.precision();
    }

    /** The options of a write, with the table's location. */
    Map<String, String> writeOptions(CaseInsensitiveStringMap given) {
        return options(given);
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
        return new CatalogWrite.CatalogWriteBuilder(this, info);
    }

    // ── DELETE ───────────────────────────────────────────────────────────────────────────────

    /** Throws Python's error if there is no exact predicate. */
    @Override
    public boolean canDeleteWhere(Predicate[] conditions) {
        question().translate(conditions);
        return true;
    }

    @Override
    public void deleteWhere(Predicate[] conditions) {
        question().delete(conditions);
    }

    // ── SHOW PARTITIONS ──────────────────────────────────────────────────────────────────────

    private synchronized JsonNode partitions() {
        if (partitions == null) {
            partitions = question().listPartitions();
        }
        return partitions;
    }

    @Override
    public StructType partitionSchema() {
        return (StructType) DataType.fromJson(partitions().get("schema").asText());
    }

    @Override
    public InternalRow[] listPartitionIdentifiers(String[] names, InternalRow wanted) {
        StructType schema = partitionSchema();
        List<InternalRow> found = new ArrayList<>();
        for (JsonNode texts : partitions().get("rows")) {
            InternalRow row = Values.row(texts, schema);
            boolean matches = true;
            for (int i = 0; i < names.length; i++) {
                int index = schema.fieldIndex(names[i]);
                StructField field = schema.apply(index);
                matches &=
                        Objects.equals(
                                ((GenericInternalRow) row).genericGet(index),
                                wanted.isNullAt(i) ? null : wanted.get(i, field.dataType()));
            }
            if (matches) {
                found.add(row);
            }
        }
        return found.toArray(new InternalRow[0]);
    }

    @Override
    public void createPartition(InternalRow key, Map<String, String> properties) {
        throw cannotChangePartition("ADD");
    }

    @Override
    public boolean dropPartition(InternalRow key) {
        throw cannotChangePartition("DROP");
    }

    @Override
    public void replacePartitionMetadata(InternalRow key, Map<String, String> properties) {
        throw cannotChangePartition("ALTER");
    }

    @Override
    public Map<String, String> loadPartitionMetadata(InternalRow key) {
        return Map.of();
    }

    private InvalidRequest cannotChangePartition(String what) {
        return new InvalidRequest(
                String.format(
                        "Cannot %s a PARTITION of %s: partitions follow from the rows. Use"
                                + " INSERT, or DELETE FROM with a condition.",
                        what, name()));
    }

    /** A table that becomes visible when its rows are written. */
    static final class Staged extends WritableTable implements StagedTable {
        Staged(CatalogSettings settings, Identifier identifier, JsonNode loaded) {
            super(settings, identifier, loaded);
        }

        /** In an object store the commit of the rows creates the table. */
        @Override
        Map<String, String> writeOptions(CaseInsensitiveStringMap given) {
            Map<String, String> options = super.writeOptions(given);
            options.putAll(texts(loaded.get("new")));
            return options;
        }

        @Override
        public void commitStagedChanges() {
            if (settings.about(identifier).finish(loaded).has("exists")) {
                throw new InvalidRequest(
                        "Cannot create " + name() + ": another writer has created it meanwhile.");
            }
        }

        @Override
        public void abortStagedChanges() {
            settings.about(identifier).abort(loaded);
        }

        @Override
        public CustomTaskMetric[] reportDriverMetrics() {
            return new CustomTaskMetric[0];
        }
    }
}
