package phalanx.bridge;

import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.DeltaWriteBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsDelta;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * An UPDATE, MERGE or DELETE of single rows: a scan reads rows with their ids, and a write deletes,
 * updates and inserts rows. Both use the same version of the table.
 */
final class RowChanges implements SupportsDelta {
    static final String OPTION = "row_changes";

    private final RowLevelTable table;
    private final Command command;
    private Map<String, String> jobOptions;

    RowChanges(RowLevelTable table, Command command) {
        this.table = table;
        this.command = command;
    }

    RowLevelTable table() {
        return table;
    }

    /** Begins the job for the first scan or write: a DELETE of whole partitions has none. */
    private synchronized CaseInsensitiveStringMap options(CaseInsensitiveStringMap given) {
        if (jobOptions == null) {
            jobOptions = table.beginChanges(command.name().toLowerCase(Locale.ROOT));
        }
        Map<String, String> options = new HashMap<>(given.asCaseSensitiveMap());
        options.putAll(jobOptions);
        return new CaseInsensitiveStringMap(options);
    }

    @Override
    public String description() {
        return "phalanx: " + command + " of rows by their ids";
    }

    @Override
    public Command command() {
        return command;
    }

    @Override
    public NamedReference[] rowId() {
        StructField[] fields = RowLevelTable.ROW_ID.fields();
        NamedReference[] found = new NamedReference[fields.length];
        for (int i = 0; i < found.length; i++) {
            found[i] = Expressions.column(fields[i].name());
        }
        return found;
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
        table.settings.check(table.name(), given);
        return table.scanBuilder(options(given), this);
    }

    @Override
    public DeltaWriteBuilder newWriteBuilder(LogicalWriteInfo info) {
        CaseInsensitiveStringMap options = options(CaseInsensitiveStringMap.empty());
        return new DeltaWriteBuilder() {
            @Override
            public RowChangeWrite build() {
                return new RowChangeWrite(RowChanges.this, info, options);
            }
        };
    }
}
