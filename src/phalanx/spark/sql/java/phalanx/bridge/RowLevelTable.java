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

/** A table of which single rows can be changed: each has an id, as two hidden columns. */
final class RowLevelTable extends WritableTable
        implements SupportsRowLevelOperations, SupportsMetadataColumns {
    static final StructType ROW_ID =
            new StructType(new StructField[] {id("_phalanx_leaf"), id("_phalanx_address")});

    RowLevelTable(CatalogSettings tables, Identifier identifier, JsonNode loaded) {
        super(tables, identifier, loaded);
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

    /** A scan that may read ids, and tells the change that it is part of what it has read. */
    ScanBuilder scanBuilder(CaseInsensitiveStringMap options, RowChanges changes) {
        return new TableScanBuilder(
                CatalogSettings.source(),
                schema(),
                Hints.without(options),
                Hints.of(options),
                ROW_ID,
                changes);
    }

    @Override
    public RowLevelOperationBuilder newRowLevelOperationBuilder(RowLevelOperationInfo info) {
        tables.check(name(), info.options());
        return () -> new RowChanges(this, info.command());
    }

    /** What cannot be told exactly is found row by row. */
    @Override
    public boolean canDeleteWhere(Predicate[] conditions) {
        return question().where(conditions).ask("can_delete").get("can").asBoolean();
    }

    /** What the parts of a change are told to belong together by: all see one state of the table. */
    Map<String, String> begun(String command) {
        CatalogSettings.Question question = question().with("command", command);
        if (version() != null) {
            question.with("version", version());
        }
        Map<String, String> options = new HashMap<>(tables.options(path()));
        options.putAll(texts(question.ask("begin_changes").get("options")));
        return options;
    }
}
