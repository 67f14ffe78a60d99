package phalanx.bridge;

import java.util.Set;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.Dataset$;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation$;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;

/**
 * Work of Phalanx for many tasks, as a DataFrame.
 *
 * <p>The process of the session hands it over by a call, and the plan of the DataFrame holds it: no
 * option names it, so that no query can bring another.
 */
public final class WorkFrames {
    private WorkFrames() {}

    /** Whether these classes are for the Spark that runs them. */
    public static boolean isForThisSpark() {
        return Source.isForThisSpark();
    }

    /** The rows of pickled work, with the columns of a schema as JSON. */
    public static Dataset<Row> frame(SparkSession session, byte[] work, String schema) {
        return Dataset$.MODULE$.ofRows(
                (org.apache.spark.sql.classic.SparkSession) session,
                DataSourceV2Relation$.MODULE$.create(
                        new WorkTable(work, (StructType) DataType.fromJson(schema)),
                        Option.empty(),
                        Option.empty(),
                        CaseInsensitiveStringMap.empty(),
                        Option.empty()));
    }

    private record WorkTable(byte[] work, StructType schema) implements SupportsRead {
        @Override
        public String name() {
            return "work of phalanx";
        }

        @Override
        public Set<TableCapability> capabilities() {
            return Set.of(TableCapability.BATCH_READ);
        }

        @Override
        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
            return new ColumnScan.Builder(
                    CatalogSettings.source(), schema, options, new StructType(), work);
        }
    }
}
