package phalanx.bridge;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.Count;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.expressions.aggregate.Max;
import org.apache.spark.sql.connector.expressions.aggregate.Min;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownV2Filters;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Collects what a query pushes down, and asks Python which of it Python applies. */
final class TableScanBuilder extends ColumnScan.ColumnScanBuilder
        implements SupportsPushDownV2Filters, SupportsPushDownLimit, SupportsPushDownAggregates {
    private final Hints hints;
    // The change of rows that the scan is part of; null for a query.
    private final RowChanges changes;
    private Planner.ScanQuestion question;
    private Predicate[] pushed = new Predicate[0];
    private Integer limit;
    private AnsweredScan answered;

    TableScanBuilder(
            Source source,
            StructType schema,
            CaseInsensitiveStringMap options,
            Hints hints,
            StructType hidden,
            RowChanges changes) {
        super(source, schema, options, hidden);
        this.hints = hints;
        this.changes = changes;
    }

    private Planner.ScanQuestion question() {
        if (question == null) {
            question = new Planner.ScanQuestion(source, schema, options, changes != null);
        }
        return question;
    }

    /** Returns the conditions that Spark has to evaluate, since Python does not apply them exactly. */
    @Override
    public Predicate[] pushPredicates(Predicate[] predicates) {
        if (predicates.length == 0) {
            return predicates;
        }
        pushed = predicates;
        question = question().withConditions(predicates);
        JsonNode exact = question.checkConditions().get("exact");
        List<Predicate> left = new ArrayList<>();
        Predicate selective = null;
        for (int i = 0; i < predicates.length; i++) {
            if (!exact.get(i).asBoolean()) {
                left.add(predicates[i]);
            } else if (!predicates[i].name().equals("IS_NOT_NULL")) {
                selective = predicates[i];
            }
        }
        // Spark prunes the other side of a join only if it sees a filter on this one.
        if (hints.joins() && left.isEmpty() && selective != null) {
            left.add(selective);
        }
        return left.toArray(new Predicate[0]);
    }

    @Override
    public Predicate[] pushedPredicates() {
        return pushed;
    }

    /** Partial: Spark still limits the rows of all tasks together. */
    @Override
    public boolean pushLimit(int rows) {
        limit = rows;
        return true;
    }

    @Override
    public boolean isPartiallyPushed() {
        return true;
    }

    @Override
    public boolean supportCompletePushDown(Aggregation aggregation) {
        return pushAggregation(aggregation);
    }

    @Override
    public boolean pushAggregation(Aggregation aggregation) {
        if (answered == null) {
            answered = askAggregates(aggregation);
        }
        return answered != null;
    }

    private AnsweredScan askAggregates(Aggregation aggregation) {
        List<StructField> columns = new ArrayList<>();
        for (Expression by : aggregation.groupByExpressions()) {
            if (!(by instanceof NamedReference column) || column.fieldNames().length != 1) {
                return null;
            }
            columns.add(schema.apply(column.fieldNames()[0]));
        }
        ArrayNode functions = Planner.JSON.createArrayNode();
        for (AggregateFunc function : aggregation.aggregateExpressions()) {
            ObjectNode tree = functions.addObject();
            DataType type = DataTypes.LongType;
            if (function instanceof CountStar) {
                tree.put("name", "COUNT_STAR");
            } else if (function instanceof Count count && !count.isDistinct()) {
                tree.put("name", "COUNT").setAll(ExpressionTree.of(count.column()));
            } else if (function instanceof Min || function instanceof Max) {
                Expression column = function.children()[0];
                if (!(column instanceof NamedReference known) || known.fieldNames().length != 1) {
                    return null;
                }
                tree.put("name", function instanceof Min ? "MIN" : "MAX").setAll(ExpressionTree.of(column));
                type = schema.apply(known.fieldNames()[0]).dataType();
            } else {
                return null;
            }
            String name = "agg" + columns.size();
            columns.add(new StructField(name, type, true, Metadata.empty()));
        }
        JsonNode answer = question().aggregate(aggregation.groupByExpressions(), functions);
        StructType output = new StructType(columns.toArray(new StructField[0]));
        return answer.get("rows").isNull()
                ? null
                : new AnsweredScan(output, answer, hints.isPastSnapshot(options));
    }

    @Override
    public Scan build() {
        if (answered != null) {
            return answered;
        }
        return new TableScan(source, schema, columns, options, question(), limit, hints);
    }
}
