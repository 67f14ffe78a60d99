package phalanx.bridge;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Window;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.connector.catalog.CatalogPlugin;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.write.RowLevelOperationTable;
import org.apache.spark.sql.execution.SparkStrategy;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
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
                            return new WithHints();
                        }
                    });
            session.injectPreCBORule(
                    new AbstractFunction1<>() {
                        @Override
                        public Rule<LogicalPlan> apply(org.apache.spark.sql.SparkSession own) {
                            return new SourceKeys(own);
                        }
                    });
            session.injectPlannerStrategy(
                    new AbstractFunction1<>() {
                        @Override
                        public SparkStrategy apply(org.apache.spark.sql.SparkSession ignored) {
                            return new Reads.Finding();
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
     * Tells a scan, before it is made, whether it is part of a join, and by which of its columns
     * rows are brought together: a task for each partition is of use there, and only there.
     */
    private static final class WithHints extends Rule<LogicalPlan> {
        @Override
        public LogicalPlan apply(LogicalPlan plan) {
            Set<ExprId> gathered = new HashSet<>();
            boolean[] joins = {false};
            plan.foreach(
                    new AbstractFunction1<>() {
                        @Override
                        public BoxedUnit apply(LogicalPlan node) {
                            joins[0] |= node instanceof Join;
                            addGathering(node, gathered);
                            return BoxedUnit.UNIT;
                        }
                    });
            return plan.transformDown(
                    replacing(
                            DataSourceV2Relation.class,
                            relation ->
                                    isOurs(relation.table())
                                            ? hinted(relation, gathered, joins[0])
                                            : relation));
        }

        private static boolean isOurs(Table table) {
            return table instanceof BridgedTable
                    || table instanceof CatalogTable
                    || table instanceof RowLevelOperationTable changed
                            && changed.operation() instanceof RowChanges;
        }

        private static LogicalPlan hinted(
                DataSourceV2Relation relation, Set<ExprId> gathered, boolean joins) {
            List<String> names = new ArrayList<>();
            for (Attribute each : CollectionConverters.asJava(relation.output())) {
                if (gathered.contains(each.exprId())) {
                    names.add(each.name());
                }
            }
            return relation.copy(
                    relation.table(),
                    relation.output(),
                    relation.catalog(),
                    relation.identifier(),
                    new Hints(joins, names).in(relation.options()),
                    relation.timeTravelSpec());
        }

        /** The columns by which rows are brought together; above them other names may stand. */
        private static void addGathering(LogicalPlan node, Set<ExprId> gathered) {
            if (node instanceof Join join && join.condition().isDefined()) {
                add(join.condition().get(), gathered);
            } else if (node instanceof Aggregate aggregate) {
                aggregate.groupingExpressions().foreach(each -> add(each, gathered));
            } else if (node instanceof Window window) {
                window.partitionSpec().foreach(each -> add(each, gathered));
            }
            for (Expression each : CollectionConverters.asJava(node.expressions())) {
                if (each instanceof Alias alias && gathered.contains(alias.exprId())) {
                    add(alias.child(), gathered);
                }
            }
        }

        private static boolean add(Expression expression, Set<ExprId> gathered) {
            boolean isNew = false;
            for (Attribute each : CollectionConverters.asJava(expression.references().toSeq())) {
                isNew |= gathered.add(each.exprId());
            }
            return isNew;
        }
    }

    static <N extends LogicalPlan> PartialFunction<LogicalPlan, LogicalPlan> replacing(
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
