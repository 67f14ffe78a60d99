package phalanx.bridge;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Map;
import org.apache.spark.sql.connector.distributions.Distribution;
import org.apache.spark.sql.connector.distributions.Distributions;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.SortDirection;
import org.apache.spark.sql.connector.expressions.SortOrder;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.LogicalWriteInfoImpl;
import org.apache.spark.sql.connector.write.RequiresDistributionAndOrdering;
import org.apache.spark.sql.connector.write.SupportsDynamicOverwrite;
import org.apache.spark.sql.connector.write.SupportsOverwriteV2;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A write whose rows Spark shuffles to their partitions first, unless an option says otherwise. */
final class CatalogWrite implements RequiresDistributionAndOrdering, Reads.ReportingWrite {
    private final RowWrite rows;
    private final RowWrite batches;
    private final Transform[] clusters;
    private final Transform[] orders;

    private CatalogWrite(
            RowWrite rows, RowWrite batches, Transform[] clusters, Transform[] orders) {
        this.rows = rows;
        this.batches = batches;
        this.clusters = clusters;
        this.orders = orders;
    }

    @Override
    public Distribution requiredDistribution() {
        return clusters.length == 0
                ? Distributions.unspecified()
                : Distributions.clustered(clusters);
    }

    /** Not strict: Spark may split a large partition over several tasks. */
    @Override
    public boolean distributionStrictlyRequired() {
        return false;
    }

    @Override
    public SortOrder[] requiredOrdering() {
        SortOrder[] found = new SortOrder[orders.length];
        for (int i = 0; i < found.length; i++) {
            found[i] = Expressions.sort(orders[i], SortDirection.ASCENDING);
        }
        return found;
    }

    @Override
    public BatchWrite toBatch() {
        return rows.toBatch();
    }

    @Override
    public Reads reads() {
        return rows.reads();
    }

    @Override
    public StreamingWrite toStreaming() {
        return batches.toStreaming();
    }

    @Override
    public CustomMetric[] supportedCustomMetrics() {
        return rows.supportedCustomMetrics();
    }

    @Override
    public String description() {
        return rows.description();
    }

    @Override
    public String toString() {
        return rows.toString();
    }

    /** Collects which rows the write replaces. */
    static final class CatalogWriteBuilder implements SupportsOverwriteV2, SupportsDynamicOverwrite {
        private static final String DISTRIBUTION = "distribution";

        private final WritableTable table;
        private final LogicalWriteInfo info;
        private final Map<String, String> options;
        private boolean overwrites;

        CatalogWriteBuilder(WritableTable table, LogicalWriteInfo info) {
            this.table = table;
            this.info = info;
            this.options = table.writeOptions(info.options());
        }

        @Override
        public WriteBuilder truncate() {
            overwrites = true;
            return this;
        }

        @Override
        public WriteBuilder overwrite(Predicate[] conditions) {
            JsonNode answer = table.question().translate(conditions);
            options.put("replace_where", answer.get("where").asText());
            overwrites = true;
            return this;
        }

        @Override
        public WriteBuilder overwriteDynamicPartitions() {
            options.put("partition_overwrite", "dynamic");
            overwrites = true;
            return this;
        }

        @Override
        public Write build() {
            Transform[] clusters = Transforms.of(table.loaded.get("clusters"));
            Transform[] orders = Transforms.of(table.loaded.get("orders"));
            String wanted = info.options().getOrDefault(DISTRIBUTION, "auto").toLowerCase();
            if (wanted.equals("none")) {
                clusters = new Transform[0];
                orders = new Transform[0];
            } else if (clusters.length > 0 && (wanted.equals("auto") || wanted.equals("hash"))) {
                // Spark shuffles the rows, so Python need not gather small files.
                options.keySet().removeIf(key -> key.equalsIgnoreCase(DISTRIBUTION));
                options.put(DISTRIBUTION, "none");
            }
            return new CatalogWrite(
                    write(options), write(table.writeOptions(info.options())), clusters, orders);
        }

        private RowWrite write(Map<String, String> options) {
            RowWrite.RowWriteBuilder builder =
                    new RowWrite.RowWriteBuilder(
                            Source.create(),
                            new LogicalWriteInfoImpl(
                                    info.queryId(),
                                    info.schema(),
                                    new CaseInsensitiveStringMap(options),
                                    info.rowIdSchema(),
                                    info.metadataSchema()),
                            new Reads(table));
            return (RowWrite) (overwrites ? builder.truncate() : builder).build();
        }
    }
}
