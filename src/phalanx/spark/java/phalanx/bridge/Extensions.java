package phalanx.bridge;

import java.util.HashSet;
import java.util.Set;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.EqualNullSafe;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Window;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.connector.catalog.CatalogPlugin;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import scala.Option;
import scala.PartialFunction;
import scala.Some;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractFunction1;
import scala.runtime.AbstractPartialFunction;
import scala.runtime.BoxedUnit;

/** What a session needs beside the source, so that Spark makes use of partitions. */
public final class Extensions extends AbstractFunction1<SparkSessionExtensions, BoxedUnit> {
    @Override
    public BoxedUnit apply(SparkSessionExtensions session) {
        if (Source.isForThisSpark()) {
            session.injectPreOperatorOptimizationRule(
                    new AbstractFunction1<>() {
                        @Override
                        public Rule<LogicalPlan> apply(org.apache.spark.sql.SparkSession ignored) {
                            return new WithFunctions();
                        }
                    });
            session.injectPreCBORule(
                    new AbstractFunction1<>() {
                        @Override
                        public Rule<LogicalPlan> apply(org.apache.spark.sql.SparkSession ignored) {
                            return new WithoutUnusedKeys();
                        }
                    });
            session.injectPreCBORule(
                    new AbstractFunction1<>() {
                        @Override
                        public Rule<LogicalPlan> apply(org.apache.spark.sql.SparkSession ignored) {
                            return new WithVisibleFilters();
                        }
                    });
        }
        return BoxedUnit.UNIT;
    }

    /** Tables that were loaded by their path have no catalog, where Spark looks for functions. */
    private static final class WithFunctions extends Rule<LogicalPlan> {
        private static final Option<CatalogPlugin> FUNCTIONS = new Some<>(new Functions());

        @Override
        public LogicalPlan apply(LogicalPlan plan) {
            return plan.transformDown(
                    replacing(
                            DataSourceV2Relation.class,
                            relation ->
                                    relation.table() instanceof BridgedTable
                                                    && relation.catalog().isEmpty()
                                            ? relation.copy(
                                                    relation.table(),
                                                    relation.output(),
                                                    FUNCTIONS,
                                                    relation.identifier(),
                                                    relation.options(),
                                                    relation.timeTravelSpec())
                                            : relation));
        }
    }

    /**
     * A task for each partition is of use to joins and groups by its key; other queries read
     * small partitions together.
     */
    private static final class WithoutUnusedKeys extends Rule<LogicalPlan> {
        @Override
        public LogicalPlan apply(LogicalPlan plan) {
            Set<ExprId> used = new HashSet<>();
            plan.foreach(
                    new AbstractFunction1<>() {
                        @Override
                        public BoxedUnit apply(LogicalPlan node) {
                            addGathering(node, used);
                            return BoxedUnit.UNIT;
                        }
                    });
            return plan.transformDown(
                    replacing(
                            DataSourceV2ScanRelation.class,
                            relation ->
                                    relation.scan() instanceof TableScan scan
                                                    && relation.keyGroupedPartitioning().isDefined()
                                                    && !isUsed(relation, used)
                                            ? relation.copy(
                                                    relation.relation(),
                                                    scan.packed(),
                                                    relation.output(),
                                                    Option.empty(),
                                                    relation.ordering(),
                                                    relation.pushedFilters(),
                                                    relation.mergeableScan())
                                            : relation));
        }

        /** The columns by which rows are brought together; above them other names may stand. */
        private static void addGathering(LogicalPlan node, Set<ExprId> used) {
            if (node instanceof Join join && join.condition().isDefined()) {
                add(join.condition().get(), used);
            } else if (node instanceof Aggregate aggregate) {
                aggregate.groupingExpressions().foreach(each -> add(each, used));
            } else if (node instanceof Window window) {
                window.partitionSpec().foreach(each -> add(each, used));
            }
            for (Expression each : CollectionConverters.asJava(node.expressions())) {
                if (each instanceof Alias alias && used.contains(alias.exprId())) {
                    add(alias.child(), used);
                }
            }
        }

        private static boolean add(Expression expression, Set<ExprId> used) {
            boolean isNew = false;
            for (Attribute each : CollectionConverters.asJava(expression.references().toSeq())) {
                isNew |= used.add(each.exprId());
            }
            return isNew;
        }

        private static boolean isUsed(DataSourceV2ScanRelation relation, Set<ExprId> used) {
            for (Expression key :
                    CollectionConverters.asJava(relation.keyGroupedPartitioning().get())) {
                for (Attribute each : CollectionConverters.asJava(key.references().toSeq())) {
                    if (used.contains(each.exprId())) {
                        return true;
                    }
                }
            }
            return false;
        }
    }

    /**
     * One side of a join prunes the other when it runs only if Spark sees that it is filtered, and
     * of a condition that Python has taken over nothing is left: one that all rows satisfy stands
     * for it.
     */
    private static final class WithVisibleFilters extends Rule<LogicalPlan> {
        @Override
        public LogicalPlan apply(LogicalPlan plan) {
            boolean[] joins = {false};
            plan.foreach(
                    new AbstractFunction1<>() {
                        @Override
                        public BoxedUnit apply(LogicalPlan node) {
                            joins[0] |= node instanceof Join;
                            return BoxedUnit.UNIT;
                        }
                    });
            return !joins[0]
                    ? plan
                    : plan.transformUp(
                            replacing(DataSourceV2ScanRelation.class, relation -> shown(relation)));
        }

        private static LogicalPlan shown(DataSourceV2ScanRelation relation) {
            if (!(relation.scan() instanceof TableScan scan)
                    || !scan.isFiltered()
                    || relation.output().isEmpty()) {
                return relation;
            }
            Attribute first = relation.output().head();
            return new Filter(new EqualNullSafe(first, first), relation);
        }
    }

    private static <N extends LogicalPlan> PartialFunction<LogicalPlan, LogicalPlan> replacing(
            Class<N> type, java.util.function.Function<N, LogicalPlan> by) {
        return new AbstractPartialFunction<>() {
            @Override
            public boolean isDefinedAt(LogicalPlan node) {
                return type.isInstance(node);
            }

            @Override
            public <A extends LogicalPlan, B> B applyOrElse(
                    A node, scala.Function1<A, B> otherwise) {
                @SuppressWarnings("unchecked")
                B replaced =
                        type.isInstance(node)
                                ? (B) by.apply(type.cast(node))
                                : otherwise.apply(node);
                return replaced;
            }
        };
    }
}
