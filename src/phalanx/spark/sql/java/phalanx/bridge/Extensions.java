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

/** Rules that make Spark use partitions in joins, aggregates and changes of rows. */
public final class Extensions extends AbstractFunction1<SparkSessionExtensions, BoxedUnit> {
    @Override
    public BoxedUnit apply(SparkSessionExtensions session) {
        if (Source.isForThisSpark()) {
            session.injectPreOperatorOptimizationRule(
                    new AbstractFunction1<>() {
                        @Override
                        public Rule<LogicalPlan> apply(org.apache.spark.sql.SparkSession ignored) {
                            return new AddFunctions();
                        }
                    });
            session.injectPreCBORule(
                    new AbstractFunction1<>() {
                        @Override
                        public Rule<LogicalPlan> apply(org.apache.spark.sql.SparkSession ignored) {
                            return new AddHints();
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
                            return new Reads.FindScans();
                        }
                    });
        }
        return BoxedUnit.UNIT;
    }

    /** Gives tables that are loaded by path a catalog, in which Spark looks up functions. */
    private static final class AddFunctions extends Rule<LogicalPlan> {
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
     * Tells a scan, before it is built, whether it is part of a join, and by which columns rows are
     * joined or grouped: only then is one task per partition useful.
     */
    private static final class AddHints extends Rule<LogicalPlan> {
        @Override
        public LogicalPlan apply(LogicalPlan plan) {
            Set<ExprId> grouping = new HashSet<>();
            boolean[] joins = {false};
            plan.foreach(
                    new AbstractFunction1<>() {
                        @Override
                        public BoxedUnit apply(LogicalPlan node) {
                            joins[0] |= node instanceof Join;
                            addGroupingColumns(node, grouping);
                            return BoxedUnit.UNIT;
                        }
                    });
            return plan.transformDown(
                    replacing(
                            DataSourceV2Relation.class,
                            relation ->
                                    isOurs(relation.table())
                                            ? addHints(relation, grouping, joins[0])
                                            : relation));
        }

        private static boolean isOurs(Table table) {
            return table instanceof BridgedTable
                    || table instanceof CatalogTable
                    || table instanceof RowLevelOperationTable changed
                            && changed.operation() instanceof RowChanges;
        }

        private static LogicalPlan addHints(
                DataSourceV2Relation relation, Set<ExprId> grouping, boolean joins) {
            List<String> names = new ArrayList<>();
            for (Attribute each : CollectionConverters.asJava(relation.output())) {
                if (grouping.contains(each.exprId())) {
                    names.add(each.name());
                }
            }
            return relation.copy(
                    relation.table(),
                    relation.output(),
                    relation.catalog(),
                    relation.identifier(),
                    new Hints(joins, names).addTo(relation.options()),
                    relation.timeTravelSpec());
        }

        /** Adds the columns by which rows are joined or grouped, also under their aliases. */
        private static void addGroupingColumns(LogicalPlan node, Set<ExprId> grouping) {
            if (node instanceof Join join && join.condition().isDefined()) {
                addReferences(join.condition().get(), grouping);
            } else if (node instanceof Aggregate aggregate) {
                aggregate.groupingExpressions().foreach(each -> addReferences(each, grouping));
            } else if (node instanceof Window window) {
                window.partitionSpec().foreach(each -> addReferences(each, grouping));
            }
            for (Expression each : CollectionConverters.asJava(node.expressions())) {
                if (each instanceof Alias alias && grouping.contains(alias.exprId())) {
                    addReferences(alias.child(), grouping);
                }
            }
        }

        private static boolean addReferences(Expression expression, Set<ExprId> grouping) {
            boolean isNew = false;
            for (Attribute each : CollectionConverters.asJava(expression.references().toSeq())) {
                isNew |= grouping.add(each.exprId());
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
