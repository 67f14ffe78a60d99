package phalanx.bridge;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.BooleanNode;
import com.fasterxml.jackson.databind.node.IntNode;
import com.fasterxml.jackson.databind.node.NullNode;
import com.fasterxml.jackson.databind.node.TextNode;
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

/** A read of a table: Python has planned it, and Spark is told what there is to know. */
final class TableScan extends PythonScan
        implements SupportsReportStatistics,
                SupportsReportPartitioning,
                SupportsRuntimeV2Filtering,
                Reads.Looking {
    private static final int MOST_VALUES = 100_000;

    private final Source source;
    private final StructType schema;
    private final StructType columns;
    private final CaseInsensitiveStringMap options;
    private final Question question;
    private final Integer limit;
    private final Hints hints;
    private JsonNode described;
    private ArrayNode runtime = Planner.JSON.createArrayNode();
    // Spark asks for one again once it knows the runtime filters, and when it plans anew.
    private final List<TableBatch> batches = new CopyOnWriteArrayList<>();
    private boolean streams;

    TableScan(
            Source source,
            StructType schema,
            StructType columns,
            CaseInsensitiveStringMap options,
            Question question,
            Integer limit,
            Hints hints) {
        super(source, Source.NAME, columns, options, new Filter[0]);
        this.source = source;
        this.schema = schema;
        this.columns = columns;
        this.options = options;
        this.question = about(question, columns);
        this.limit = limit;
        this.hints = hints;
    }

    private static Question about(Question question, StructType columns) {
        ArrayNode names = Planner.JSON.createArrayNode();
        for (String name : columns.fieldNames()) {
            names.add(name);
        }
        return question.with("columns", names);
    }

    private synchronized JsonNode described() {
        if (described == null) {
            described = question.ask("describe");
        }
        return described;
    }

    @Override
    public ColumnarSupportMode columnarSupportMode() {
        return streams ? ColumnarSupportMode.UNSUPPORTED : ColumnarSupportMode.SUPPORTED;
    }

    /** Streams are read as Spark does it. */
    @Override
    public MicroBatchStream toMicroBatchStream(String checkpoint) {
        streams = true;
        if (!hints.pinned()) {
            return super.toMicroBatchStream(checkpoint);
        }
        // A source keeps the options that it was first asked with.
        return new PythonScan(
                        CatalogSettings.source(),
                        Source.NAME,
                        columns,
                        Hints.beyondPin(options),
                        new Filter[0])
                .toMicroBatchStream(checkpoint);
    }

    @Override
    public Batch toBatch() {
        Question tasks =
                question.with("schema", TextNode.valueOf(columns.json()))
                        .with("limit", limit == null ? NullNode.instance : IntNode.valueOf(limit))
                        .with("keyed", BooleanNode.valueOf(isKeyed()))
                        .with("runtime", runtime)
                        .with("batch_rows", IntNode.valueOf(batchRows()));
        TableBatch batch = new TableBatch(source, columns, options, tasks, keyTypes());
        batches.add(batch);
        return batch;
    }

    static int batchRows() {
        int rows = SQLConf.get().arrowMaxRecordsPerBatch();
        return rows > 0 ? rows : Integer.MAX_VALUE;
    }

    /** Whether it is of use to have a task for each partition, and none for several. */
    private boolean isKeyed() {
        if (!SQLConf.get().v2BucketingEnabled()) {
            return false;
        }
        for (JsonNode key : described().get("keys")) {
            if (hints.gathersBy(key.get("column").asText())) {
                return true;
            }
        }
        return false;
    }

    /**
     * Whether Spark is told that one task has all rows, so that it brings none together for an
     * aggregate of all of them. Joins go by keys.
     */
    private boolean isOneTask() {
        return SQLConf.get().v2BucketingEnabled()
                && !hints.joins()
                && described().get("in_one_task").asBoolean();
    }

    /** The types of the keys that tasks have; of one for all rows none, and null without keys. */
    private StructType keyTypes() {
        if (!isKeyed()) {
            return isOneTask() ? new StructType() : null;
        }
        JsonNode keys = described().get("keys");
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

    // ── what Spark may know ──────────────────────────────────────────────────────────────────

    @Override
    public Statistics estimateStatistics() {
        if (streams) {
            return of(OptionalLong.empty(), OptionalLong.empty());
        }
        JsonNode known = described();
        long rows = known.get("rows").asLong();
        // Files hold all columns: those that are read have their part of the bytes.
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
        JsonNode keys = described().get("keys");
        Expression[] transforms = new Expression[keys.size()];
        for (int i = 0; i < transforms.length; i++) {
            transforms[i] = transform(keys.get(i));
        }
        return new KeyGroupedPartitioning(transforms, described().get("groups").asInt());
    }

    private static Expression transform(JsonNode key) {
        String column = quoted(key.get("column").asText());
        String type = key.get("type").asText();
        if (type.equals("identity")) {
            return Expressions.identity(column);
        }
        if (type.equals("bucket")) {
            return Expressions.bucket(key.get("num_buckets").asInt(), column);
        }
        return Expressions.apply(type, Expressions.column(column));
    }

    private static String quoted(String name) {
        return "`" + name.replace("`", "``") + "`";
    }

    @Override
    public NamedReference[] filterAttributes() {
        JsonNode names = described().get("filters");
        NamedReference[] found = new NamedReference[names.size()];
        for (int i = 0; i < found.length; i++) {
            found[i] = Expressions.column(quoted(names.get(i).asText()));
        }
        return found;
    }

    /** More values than these take longer to send than partitions take to read. */
    @Override
    public void filter(Predicate[] predicates) {
        List<Predicate> kept = new ArrayList<>();
        for (Predicate each : predicates) {
            if (each.children().length <= MOST_VALUES) {
                kept.add(each);
            }
        }
        runtime = ExpressionTree.of(kept.toArray(new Predicate[0]));
    }

    /** What tells Python where rows were looked for, by the tasks that ran. */
    @Override
    public Collection<byte[]> looked() {
        List<byte[]> found = new ArrayList<>();
        for (TableBatch batch : batches) {
            if (batch.isRead() && !hints.isOfThePast(options)) {
                found.add(batch.looked());
            }
        }
        return found;
    }

    @Override
    public String description() {
        if (streams) {
            return super.description();
        }
        JsonNode known = described();
        String limited = limit == null ? "" : ", limit " + limit;
        // Once it has run, what other sides of joins have pruned is known too.
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
        Map<String, String> told = new HashMap<>();
        if (!streams) {
            told.put("Planned", description());
        }
        return scala.collection.immutable.Map.from(CollectionConverters.asScala(told));
    }
}
