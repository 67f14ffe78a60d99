package phalanx.bridge;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.ApplyFunctionExpression;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.DynamicPruningSubquery;
import org.apache.spark.sql.catalyst.expressions.EqualTo;
import org.apache.spark.sql.catalyst.expressions.Exists;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.InSubquery;
import org.apache.spark.sql.catalyst.expressions.Literal$;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression$;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.Complete$;
import org.apache.spark.sql.catalyst.expressions.aggregate.First;
import org.apache.spark.sql.catalyst.plans.Inner$;
import org.apache.spark.sql.catalyst.plans.JoinType;
import org.apache.spark.sql.catalyst.plans.LeftSemi$;
import org.apache.spark.sql.catalyst.plans.RightOuter$;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.WriteDelta;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.connector.write.RowLevelOperationTable;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.types.DataType;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Makes a change of rows that is joined with a source read only the partitions of the source's keys.
 *
 * <p>The keys are collected before the table is read: one for each partition, where Spark can
 * compute the partition value. Spark's own rule would first read the keys of the whole table.
 */
final class SourceKeys extends Rule<LogicalPlan> {
    private final SparkSession session;

    SourceKeys(SparkSession session) {
        this.session = session;
    }

    @Override
    public LogicalPlan apply(LogicalPlan plan) {
        if (!(plan instanceof WriteDelta write) || !isOurs(write.originalTable())) {
            return plan;
        }
        LogicalPlan query =
                write.query()
                        .transformUp(Extensions.replacing(Filter.class, SourceKeys::lowerConditions))
                        .transformUp(Extensions.replacing(Filter.class, this::prune))
                        .transformUp(Extensions.replacing(Join.class, this::prune))
                        .transformUp(Extensions.replacing(Filter.class, SourceKeys::mergeFilters));
        return write.copy(
                write.table(),
                write.condition(),
                query,
                write.originalTable(),
                write.projections(),
                Option.empty(),
                write.write());
    }

    private static boolean isOurs(Object relation) {
        return relation instanceof DataSourceV2Relation found
                && found.table() instanceof RowLevelTable;
    }

    /** Copies conditions on the table below the projection in which Spark numbers its rows. */
    private static LogicalPlan lowerConditions(Filter filter) {
        if (!(filter.child() instanceof Project project)
                || !(project.child() instanceof DataSourceV2Relation relation)
                || !isRowChange(relation)) {
            return filter;
        }
        LogicalPlan found = relation;
        for (Expression each : splitConjuncts(filter.condition(), new ArrayList<>())) {
            if (each.deterministic() && each.references().subsetOf(relation.outputSet())) {
                found = new Filter(each, found);
            }
        }
        return filter.copy(filter.condition(), project.copy(project.projectList(), found));
    }

    private static boolean isRowChange(DataSourceV2Relation relation) {
        return relation.table() instanceof RowLevelOperationTable changed
                && changed.operation() instanceof RowChanges;
    }

    /** Merges two filters: Spark pushes only the conditions of the lowest one to the table. */
    private static LogicalPlan mergeFilters(Filter filter) {
        return filter.child() instanceof Filter below
                        && below.child() instanceof DataSourceV2Relation relation
                        && isRowChange(relation)
                ? new Filter(new And(below.condition(), filter.condition()), relation)
                : filter;
    }

    // ── conditions with a subquery ───────────────────────────────────────────────────────────

    private LogicalPlan prune(Filter filter) {
        if (!(filter.child() instanceof DataSourceV2Relation relation) || !isRowChange(relation)) {
            return filter;
        }
        LogicalPlan found = filter;
        for (Expression each : splitConjuncts(filter.condition(), new ArrayList<>())) {
            List<Expression> equal = new ArrayList<>();
            LogicalPlan keys = null;
            if (each instanceof InSubquery in) {
                keys = in.query().plan();
                for (int i = 0; i < in.values().size(); i++) {
                    equal.add(new EqualTo(in.values().apply(i), keys.output().apply(i)));
                }
                equal.addAll(CollectionConverters.asJava(in.query().joinCond()));
            } else if (each instanceof Exists exists) {
                keys = exists.plan();
                equal.addAll(CollectionConverters.asJava(exists.joinCond()));
            }
            if (keys != null) {
                found = prune(found, relation, equal, keys);
            }
        }
        return found;
    }

    // ── joins ────────────────────────────────────────────────────────────────────────────────

    private LogicalPlan prune(Join join) {
        JoinType type = join.joinType();
        boolean mayPrune =
                type == Inner$.MODULE$ || type == RightOuter$.MODULE$ || type == LeftSemi$.MODULE$;
        if (!mayPrune || join.condition().isEmpty()) {
            return join;
        }
        List<Expression> equal = splitConjuncts(join.condition().get(), new ArrayList<>());
        // Bottom-up, since the replacement of a relation contains it.
        LogicalPlan left =
                join.left()
                        .transformUp(
                                Extensions.replacing(
                                        DataSourceV2Relation.class,
                                        relation ->
                                                isRowChange(relation)
                                                        ? prune(
                                                                relation,
                                                                relation,
                                                                equal,
                                                                join.right())
                                                        : relation));
        return join.copy(left, join.right(), type, join.condition(), join.hint());
    }

    private LogicalPlan prune(
            LogicalPlan above,
            DataSourceV2Relation relation,
            List<Expression> conditions,
            LogicalPlan keys) {
        JsonNode columns =
                ((RowChanges) ((RowLevelOperationTable) relation.table()).operation())
                        .table()
                        .loaded
                        .get("pruning");
        LogicalPlan found = above;
        // A plan that returns other keys when it runs again cannot prune.
        if (!keys.deterministic()) {
            return found;
        }
        for (Expression each : conditions) {
            if (!(each instanceof EqualTo equal)) {
                continue;
            }
            for (boolean isLeft : new boolean[] {true, false}) {
                Expression ours = isLeft ? equal.left() : equal.right();
                Expression theirs = isLeft ? equal.right() : equal.left();
                if (ours instanceof Attribute column
                        && relation.outputSet().contains(column)
                        && columns.has(column.name())
                        && theirs.deterministic()
                        && !theirs.references().isEmpty()
                        && theirs.references().subsetOf(keys.outputSet())) {
                    JsonNode fields = columns.get(column.name());
                    found = new Filter(pruneBy(column, theirs, keys, fields), found);
                }
            }
        }
        return found;
    }

    private static List<Expression> splitConjuncts(Expression condition, List<Expression> found) {
        if (condition instanceof And both) {
            splitConjuncts(both.left(), found);
            splitConjuncts(both.right(), found);
        } else {
            found.add(condition);
        }
        return found;
    }

    private Expression pruneBy(
            Attribute column, Expression theirs, LogicalPlan keys, JsonNode fields) {
        List<Expression> groups = new ArrayList<>();
        for (JsonNode field : fields) {
            groups.add(computePartitionValue(field, theirs));
        }
        boolean isItself = groups.isEmpty() || groups.contains(theirs);
        Expression one =
                new AggregateExpression(
                        new First(theirs, true),
                        Complete$.MODULE$,
                        false,
                        Option.empty(),
                        NamedExpression$.MODULE$.newExprId());
        Alias key = alias(isItself ? theirs : one, "key");
        List<NamedExpression> output = List.of(key);
        LogicalPlan aggregate =
                new Aggregate(
                        seq(isItself ? List.of(theirs) : groups), seq(output), keys, Option.empty());
        // Spark does not optimize the plan of such a subquery again.
        LogicalPlan planned = session.sessionState().optimizer().execute(aggregate);
        return new DynamicPruningSubquery(
                column,
                planned,
                seq(List.<Expression>of(planned.output().head())),
                seq(List.<Object>of(0)),
                false,
                NamedExpression$.MODULE$.newExprId(),
                Option.empty(),
                Option.empty());
    }

    private static Expression computePartitionValue(JsonNode field, Expression value) {
        String name = field.get("name").asText();
        if (name.equals("identity")) {
            return value;
        }
        DataType type = value.dataType();
        List<Expression> arguments = new ArrayList<>();
        ScalarFunction<?> function;
        if (name.equals("bucket")) {
            function = new Bucket(type);
            arguments.add(Literal$.MODULE$.apply(field.get("parameters").get(0).asInt()));
        } else {
            function = new CalendarPart(name, type);
        }
        arguments.add(value);
        return new ApplyFunctionExpression(function, seq(arguments));
    }

    private static Alias alias(Expression of, String name) {
        return new Alias(
                of,
                name,
                NamedExpression$.MODULE$.newExprId(),
                seq(List.<String>of()),
                Option.empty(),
                seq(List.<String>of()));
    }

    private static <T> Seq<T> seq(List<T> of) {
        return CollectionConverters.asScala(of).toSeq();
    }
}
