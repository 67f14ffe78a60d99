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
 * What a statement that writes has read of tables of Phalanx, for its commit: Python compares it
 * with what others have changed meanwhile, and takes what was read of the same table.
 *
 * <p>The scans are found in the plan that Spark runs, whatever it has made of the statement, and
 * each tells what it has handed to tasks. A write of which no plan was seen has read everything.
 */
final class Reads {
    // Null where all rows of the table cannot be told, as with one that is written by its path.
    private final WritableTable table;
    private List<Scan> scans;

    Reads(WritableTable table) {
        this.table = table;
    }

    /** A write that takes what its statement has read along to its commit. */
    interface Reader {
        Reads reads();
    }

    /** A scan that knows what it has read. */
    interface Looking {
        Collection<byte[]> looked();
    }

    /** The messages of the tasks, and what was read. */
    WriterCommitMessage[] with(WriterCommitMessage[] messages) {
        List<WriterCommitMessage> all = new ArrayList<>(Arrays.asList(messages));
        for (byte[] each : looked()) {
            all.add(new PythonWriterCommitMessage(each));
        }
        return all.toArray(new WriterCommitMessage[0]);
    }

    private synchronized List<byte[]> looked() {
        List<byte[]> found = new ArrayList<>();
        if (scans == null) {
            addEverything(found);
            return found;
        }
        for (Scan scan : scans) {
            if (scan instanceof Looking looking) {
                found.addAll(looking.looked());
            } else if (scan instanceof ColumnScan told && isOfTable(told.path())) {
                addEverything(found);
            }
        }
        return found;
    }

    private void addEverything(List<byte[]> found) {
        if (table != null && table.loaded.hasNonNull("everything")) {
            found.add(Base64.getDecoder().decode(table.loaded.get("everything").asText()));
        }
    }

    /** Whether a path is the table's, or may be: of one that is not written in full, by its end. */
    private boolean isOfTable(String path) {
        if (table == null || path == null) {
            return false;
        }
        String one = plain(path);
        String other = plain(table.path());
        boolean isWhole = one.matches("(/|\\w+:).*") && !(one + "/").contains("/../");
        return isWhole ? one.equals(other) : folder(one).equals(folder(other));
    }

    private static String plain(String path) {
        String local = path.replaceFirst("^file:/*(?=/)", "");
        return local.replaceAll("/(\\./|/)+", "/").replaceFirst("(?<=.)/$", "");
    }

    private static String folder(String path) {
        return path.substring(path.lastIndexOf('/') + 1);
    }

    // ── the plan ─────────────────────────────────────────────────────────────────────────────

    /** Adds the scans of a plan: what was planned anew no longer shows those that ran already. */
    private synchronized void find(LogicalPlan query) {
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

    /** Shows the writes of Phalanx the plan that they are part of; Spark plans it. */
    static final class Finding extends SparkStrategy {
        @Override
        public Seq<SparkPlan> apply(LogicalPlan plan) {
            if (plan instanceof V2WriteCommand command) {
                Option<? extends Write> write = write(command);
                if (write.isDefined() && write.get() instanceof Reader reader) {
                    reader.reads().find(command.query());
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
