package phalanx.bridge;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportPartitioning;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.SupportsRuntimeV2Filtering;
import org.apache.spark.sql.connector.read.partitioning.KeyGroupedPartitioning;
import org.apache.spark.sql.connector.read.partitioning.Partitioning;
import org.apache.spark.sql.connector.read.partitioning.UnknownPartitioning;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.jdk.javaapi.CollectionConverters;

/** A scan of a table that Python plans; reports its statistics and partitioning to Spark. */
final class TableScan extends PythonScan
        implements SupportsReportStatistics,
                SupportsReportPartitioning,
                SupportsRuntimeV2Filtering,
                Reads.ReportingScan {
    private static final int MAX_VALUES = 100_000;

    private final Source source;
    private final StructType schema;
    private final StructType columns;
    private final CaseInsensitiveStringMap options;
    private final Planner.ScanQuestion question;
    private final Integer limit;
    private final Hints hints;
    private JsonNode description;
    private ArrayNode runtimeFilters = Planner.JSON.createArrayNode();
    // Spark asks for another once it knows the runtime filters, and when it plans again.
    private final List<TableBatch> batches = new CopyOnWriteArrayList<>();
    private boolean streams;

    TableScan(
            Source source,
            StructType schema,
            StructType columns,
            CaseInsensitiveStringMap options,
            Planner.ScanQuestion question,
            Integer limit,
            Hints hints) {
        super(source, Source.NAME, columns, options, new Filter[0]);
        this.source = source;
        this.schema = schema;
        this.columns = columns;
        this.options = options;
        this.question = question.withColumns(columns);
        this.limit = limit;
        this.hints = hints;
    }

    private synchronized JsonNode describe() {
        if (description == null) {
            description = question.describe();
        }
        return description;
    }

    @Override
    public ColumnarSupportMode columnarSupportMode() {
        return streams ? ColumnarSupportMode.UNSUPPORTED : ColumnarSupportMode.SUPPORTED;
    }

    /** Streams use Spark's own reader. */
    @Override
    public MicroBatchStream toMicroBatchStream(String checkpoint) {
        streams = true;
        if (!hints.isPinned()) {
            return super.toMicroBatchStream(checkpoint);
        }
        // A source keeps the options of its first request, so take a new one.
        return new PythonScan(
                        Source.create(),
                        Source.NAME,
                        columns,
                        Hints.unpin(options),
                        new Filter[0])
                .toMicroBatchStream(checkpoint);
    }

    @Override
    public Batch toBatch() {
        Planner.ScanQuestion tasks =
                question.withTasks(columns, limit, isKeyed(), runtimeFilters, batchRows());
        TableBatch batch = new TableBatch(source, columns, options, tasks, keyTypes());
        batches.add(batch);
        return batch;
    }

    static int batchRows() {
        int rows = SQLConf.get().arrowMaxRecordsPerBatch();
        return rows > 0 ? rows : Integer.MAX_VALUE;
    }

    /** Whether the query groups rows by a partition key, so that each task reads one partition. */
    private boolean isKeyed() {
        if (!SQLConf.get().v2BucketingEnabled()) {
            return false;
        }
        for (JsonNode key : describe().get("keys")) {
            if (hints.groupsBy(key.get("column").asText())) {
                return true;
            }
        }
        return false;
    }

    /**
     * Whether to report that one task has all rows, so that Spark aggregates them without a shuffle.
     * Joins use keys instead.
     */
    private boolean isOneTask() {
        return SQLConf.get().v2BucketingEnabled()
                && !hints.joins()
                && describe().get("in_one_task").asBoolean();
    }

    /** The types of the partition keys of tasks: empty for a single task, null without keys. */
    private StructType keyTypes() {
        if (!isKeyed()) {
            return isOneTask() ? new StructType() : null;
        }
        JsonNode keys = describe().get("keys");
        StructField[] types = new StructField[keys.size()];
        for (int i = 0; i < types.length; i++) {
            StructField column = schema.apply(keys.get(i).get("column").asText());
            types[i] = keyType(keys.get(i).get("type").asText(), column);
        }
        return new StructType(types);
    }

    private static StructField keyType(String transform, StructField column) {
        if (transform.equals("identity")) {
            return column;
        }
        boolean isChain = CalendarChain.parts(transform) > 1;
        DataType type = isChain ? DataTypes.LongType : DataTypes.IntegerType;
        return column.copy(column.name(), type, true, column.metadata());
    }

    // ── statistics and partitioning ──────────────────────────────────────────────────────────

    @Override
    public Statistics estimateStatistics() {
        if (streams) {
            return of(OptionalLong.empty(), OptionalLong.empty());
        }
        JsonNode known = describe();
        long rows = known.get("rows").asLong();
        // The size of the files, scaled to the columns that are read.
        double part = (double) columns.defaultSize() / Math.max(1, schema.defaultSize());
        long bytes = (long) Math.ceil(known.get("bytes").asLong() * part);
        return of(OptionalLong.of(Math.max(1, bytes)), OptionalLong.of(rows));
    }

    private static Statistics of(OptionalLong bytes, OptionalLong rows) {
        return new Statistics() {
            @Override
            public OptionalLong sizeInBytes() {
                return bytes;
            }

            @Override
            public OptionalLong numRows() {
                return rows;
            }
        };
    }

    @Override
    public Partitioning outputPartitioning() {
        if (streams) {
            return new UnknownPartitioning(0);
        }
        if (!isKeyed()) {
            return isOneTask()
                    ? new KeyGroupedPartitioning(new Expression[0], 1)
                    : new UnknownPartitioning(0);
        }
        JsonNode keys = describe().get("keys");
        Expression[] transforms = new Expression[keys.size()];
        for (int i = 0; i < transforms.length; i++) {
            transforms[i] = transform(keys.get(i));
        }
        return new KeyGroupedPartitioning(transforms, describe().get("groups").asInt());
    }

    private static Expression transform(JsonNode key) {
        String column = quote(key.get("column").asText());
        String type = key.get("type").asText();
        if (type.equals("identity")) {
            return Expressions.identity(column);
        }
        if (type.equals("bucket")) {
            return Expressions.bucket(key.get("num_buckets").asInt(), column);
        }
        return Expressions.apply(type, Expressions.column(column));
    }

    private static String quote(String name) {
        return "`" + name.replace("`", "``") + "`";
    }

    @Override
    public NamedReference[] filterAttributes() {
        JsonNode names = describe().get("filters");
        NamedReference[] found = new NamedReference[names.size()];
        for (int i = 0; i < found.length; i++) {
            found[i] = Expressions.column(quote(names.get(i).asText()));
        }
        return found;
    }

    /** Ignores longer lists: they take longer to send than the partitions take to read. */
    @Override
    public void filter(Predicate[] predicates) {
        List<Predicate> kept = new ArrayList<>();
        for (Predicate each : predicates) {
            if (each.children().length <= MAX_VALUES) {
                kept.add(each);
            }
        }
        runtimeFilters = ExpressionTree.of(kept.toArray(new Predicate[0]));
    }

    /** The read sets of the batches that ran. */
    @Override
    public Collection<byte[]> readSets() {
        List<byte[]> found = new ArrayList<>();
        for (TableBatch batch : batches) {
            if (batch.isRead() && !hints.isPastSnapshot(options)) {
                found.add(batch.readSet());
            }
        }
        return found;
    }

    @Override
    public String description() {
        if (streams) {
            return super.description();
        }
        JsonNode known = describe();
        String limited = limit == null ? "" : ", limit " + limit;
        // After a run this includes the runtime filters of joins.
        TableBatch last = null;
        for (TableBatch batch : batches) {
            last = batch.leaves() >= 0 ? batch : last;
        }
        return String.format(
                "phalanx: %,d of %,d partitions, where %s%s",
                last != null ? last.leaves() : known.get("partitions").asLong(),
                known.get("total").asLong(),
                known.get("where").asText(),
                limited);
    }

    @Override
    public scala.collection.immutable.Map<String, String> getMetaData() {
        Map<String, String> metadata = new HashMap<>();
        if (!streams) {
            metadata.put("Planned", description());
        }
        return scala.collection.immutable.Map.from(CollectionConverters.asScala(metadata));
    }
}
