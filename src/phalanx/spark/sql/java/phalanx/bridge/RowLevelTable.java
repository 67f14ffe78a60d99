package phalanx.bridge;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.MetadataColumn;
import org.apache.spark.sql.connector.catalog.SupportsMetadataColumns;
import org.apache.spark.sql.connector.catalog.SupportsRowLevelOperations;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.RowLevelOperationBuilder;
import org.apache.spark.sql.connector.write.RowLevelOperationInfo;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A table whose single rows can be changed: two hidden columns hold the id of each row. */
final class RowLevelTable extends WritableTable
        implements SupportsRowLevelOperations, SupportsMetadataColumns {
    static final StructType ROW_ID =
            new StructType(new StructField[] {id("_phalanx_leaf"), id("_phalanx_address")});

    RowLevelTable(CatalogSettings settings, Identifier identifier, JsonNode loaded) {
        super(settings, identifier, loaded);
    }

    private static StructField id(String name) {
        return new StructField(name, DataTypes.LongType, false, Metadata.empty());
    }

    @Override
    public MetadataColumn[] metadataColumns() {
        MetadataColumn[] found = new MetadataColumn[ROW_ID.length()];
        for (int i = 0; i < found.length; i++) {
            StructField field = ROW_ID.apply(i);
            found[i] =
                    new MetadataColumn() {
                        @Override
                        public String name() {
                            return field.name();
                        }

                        @Override
                        public DataType dataType() {
                            return field.dataType();
                        }

                        @Override
                        public boolean isNullable() {
                            return false;
                        }
                    };
        }
        return found;
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
        return scanBuilder(readOptions(given), null);
    }

    /** A scan that may read row ids; {@code changes} is null outside a change of rows. */
    ScanBuilder scanBuilder(CaseInsensitiveStringMap options, RowChanges changes) {
        return new TableScanBuilder(
                Source.create(),
                schema(),
                Hints.remove(options),
                Hints.of(options),
                ROW_ID,
                changes);
    }

    @Override
    public RowLevelOperationBuilder newRowLevelOperationBuilder(RowLevelOperationInfo info) {
        settings.check(name(), info.options());
        return () -> new RowChanges(this, info.command());
    }

    /** Conditions without an exact predicate are evaluated by Spark, row by row. */
    @Override
    public boolean canDeleteWhere(Predicate[] conditions) {
        return question().canDelete(conditions).get("can_delete").asBoolean();
    }

    /** Begins a job, and returns the options that its scan and write pass on. */
    Map<String, String> beginChanges(String command) {
        Map<String, String> options = new HashMap<>(settings.options(path()));
        options.putAll(texts(question().beginChanges(command, version()).get("options")));
        return options;
    }
}
