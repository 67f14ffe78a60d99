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
 * Runs work of Phalanx on many tasks, as a DataFrame.
 *
 * <p>The session's own process passes the pickled work in a call, and the plan of the DataFrame holds
 * it. No option carries it, so that no query can run other work.
 */
public final class WorkFrames {
    private WorkFrames() {}

    /** Whether these classes were compiled for the running Spark. */
    public static boolean isForThisSpark() {
        return Source.isForThisSpark();
    }

    /** A DataFrame of the rows of pickled work, with the columns of a schema in JSON. */
    public static Dataset<Row> create(SparkSession session, byte[] work, String schema) {
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
            return new ColumnScan.ColumnScanBuilder(
                    Source.create(), schema, options, new StructType(), work);
        }
    }
}
