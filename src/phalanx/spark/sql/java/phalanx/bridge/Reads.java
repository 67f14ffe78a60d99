package phalanx.bridge;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collection;
import java.util.List;
import org.apache.spark.sql.catalyst.plans.logical.AppendData;
import org.apache.spark.sql.catalyst.plans.logical.InsertOnlyMerge;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.OverwriteByExpression;
import org.apache.spark.sql.catalyst.plans.logical.OverwritePartitionsDynamic;
import org.apache.spark.sql.catalyst.plans.logical.V2WriteCommand;
import org.apache.spark.sql.catalyst.plans.logical.WriteDelta;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SparkStrategy;
import org.apache.spark.sql.execution.adaptive.AdaptiveSparkPlanExec;
import org.apache.spark.sql.execution.columnar.InMemoryRelation;
import org.apache.spark.sql.execution.columnar.InMemoryTableScanExec;
import org.apache.spark.sql.execution.datasources.v2.BatchScanExec;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWriterCommitMessage;
import scala.Option;
import scala.collection.immutable.Nil$;
import scala.collection.immutable.Seq;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/**
 * The read sets of a statement that writes. Its commit sends them to Python, which checks them for
 * conflicts with concurrent changes of the same table.
 *
 * <p>The scans are found in the plan that Spark runs, and each reports what it handed to tasks. If
 * no plan was seen, the write counts as having read the whole table.
 */
final class Reads {
    // Null for a table that is written by its path: it has no read set of all rows.
    private final WritableTable table;
    private List<Scan> scans;

    Reads(WritableTable table) {
        this.table = table;
    }

    /** A write whose commit includes the read sets of its statement. */
    interface ReportingWrite {
        Reads reads();
    }

    /** A scan that reports its read sets. */
    interface ReportingScan {
        Collection<byte[]> readSets();
    }

    /** Adds the read sets to the messages of the tasks. */
    WriterCommitMessage[] addTo(WriterCommitMessage[] messages) {
        List<WriterCommitMessage> all = new ArrayList<>(Arrays.asList(messages));
        for (byte[] each : readSets()) {
            all.add(new PythonWriterCommitMessage(each));
        }
        return all.toArray(new WriterCommitMessage[0]);
    }

    private synchronized List<byte[]> readSets() {
        List<byte[]> found = new ArrayList<>();
        if (scans == null) {
            addFullReadSet(found);
            return found;
        }
        for (Scan scan : scans) {
            if (scan instanceof ReportingScan reporting) {
                found.addAll(reporting.readSets());
            } else if (scan instanceof ColumnScan columns && isTablePath(columns.path())) {
                addFullReadSet(found);
            }
        }
        return found;
    }

    private void addFullReadSet(List<byte[]> found) {
        if (table != null && table.loaded.hasNonNull("full_read_set")) {
            found.add(Base64.getDecoder().decode(table.loaded.get("full_read_set").asText()));
        }
    }

    /** Whether a path is, or may be, the table's. Relative paths are compared by their last part. */
    private boolean isTablePath(String path) {
        if (table == null || path == null) {
            return false;
        }
        String one = normalize(path);
        String other = normalize(table.path());
        boolean isAbsolute = one.matches("(/|\\w+:).*") && !(one + "/").contains("/../");
        return isAbsolute ? one.equals(other) : lastPart(one).equals(lastPart(other));
    }

    private static String normalize(String path) {
        String local = path.replaceFirst("^file:/*(?=/)", "");
        return local.replaceAll("/(\\./|/)+", "/").replaceFirst("(?<=.)/$", "");
    }

    private static String lastPart(String path) {
        return path.substring(path.lastIndexOf('/') + 1);
    }

    // ── the plan ─────────────────────────────────────────────────────────────────────────────

    /** Adds the scans of a plan. A plan that Spark made again no longer has the scans that ran. */
    private synchronized void addScans(LogicalPlan query) {
        List<Scan> found = scans == null ? new ArrayList<>() : scans;
        query.foreachWithSubqueries(
                new AbstractFunction1<>() {
                    @Override
                    public BoxedUnit apply(LogicalPlan node) {
                        if (node instanceof DataSourceV2ScanRelation relation) {
                            found.add(relation.scan());
                        } else if (node instanceof InMemoryRelation cached) {
                            addScans(cached.cachedPlan(), found);
                        }
                        return BoxedUnit.UNIT;
                    }
                });
        scans = found;
    }

    private static void addScans(SparkPlan plan, List<Scan> found) {
        plan.foreachWithSubqueries(
                new AbstractFunction1<>() {
                    @Override
                    public BoxedUnit apply(SparkPlan node) {
                        if (node instanceof BatchScanExec scanned) {
                            found.add(scanned.scan());
                        } else if (node instanceof AdaptiveSparkPlanExec adaptive) {
                            addScans(adaptive.inputPlan(), found);
                        } else if (node instanceof InMemoryTableScanExec cached) {
                            addScans(cached.relation().cachedPlan(), found);
                        }
                        return BoxedUnit.UNIT;
                    }
                });
    }

    /** Gives writes of Phalanx the plan that they are part of; does not plan anything itself. */
    static final class FindScans extends SparkStrategy {
        @Override
        public Seq<SparkPlan> apply(LogicalPlan plan) {
            if (plan instanceof V2WriteCommand command) {
                Option<? extends Write> write = write(command);
                if (write.isDefined() && write.get() instanceof ReportingWrite reporting) {
                    reporting.reads().addScans(command.query());
                }
            }
            @SuppressWarnings("unchecked")
            Seq<SparkPlan> none = (Seq<SparkPlan>) (Seq<?>) Nil$.MODULE$;
            return none;
        }

        private static Option<? extends Write> write(V2WriteCommand command) {
            if (command instanceof AppendData append) {
                return append.write();
            }
            if (command instanceof InsertOnlyMerge merge) {
                return merge.write();
            }
            if (command instanceof WriteDelta delta) {
                return delta.write();
            }
            if (command instanceof OverwriteByExpression overwrite) {
                return overwrite.write();
            }
            return command instanceof OverwritePartitionsDynamic dynamic
                    ? dynamic.write()
                    : Option.empty();
        }
    }
}
