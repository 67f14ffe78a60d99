package phalanx.bridge;

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.spark.SparkBuildInfo;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceReadInfo;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructType;
import org.slf4j.LoggerFactory;

/**
 * {@code format("phalanx")}: the Python data source, which plans and does all I/O, with a faster
 * transfer of rows and pushdown. Spark prefers it to the Python source of the same name.
 */
public final class Source extends PythonDataSourceV2 implements DataSourceRegister {
    static final String NAME = "phalanx";

    // The bridge extends internal classes of Spark, which differ between versions.
    private static final String BUILT_FOR = builtFor();
    private static final boolean IS_FOR_THIS_SPARK = checkVersion();

    @Override
    public String shortName() {
        return NAME;
    }

    @Override
    public Table getTable(
            StructType schema, Transform[] partitioning, Map<String, String> properties) {
        return isForThisSpark()
                ? new BridgedTable(this, schema)
                : super.getTable(schema, partitioning, properties);
    }

    static boolean isForThisSpark() {
        return IS_FOR_THIS_SPARK;
    }

    private static String builtFor() {
        try (InputStream file = Source.class.getResourceAsStream("spark-version")) {
            return file == null ? "" : new String(file.readAllBytes(), StandardCharsets.UTF_8);
        } catch (IOException error) {
            return "";
        }
    }

    private static boolean checkVersion() {
        boolean isSame = BUILT_FOR.equals(SparkBuildInfo.spark_version());
        if (!isSame) {
            LoggerFactory.getLogger(Source.class)
                    .warn(
                            "The classes of Phalanx are for Spark {}, and this is Spark {}: tables"
                                    + " are read by the Python source alone, with all columns and"
                                    + " all partitions. Let phalanx.spark.configure set"
                                    + " spark.jars.",
                            BUILT_FOR,
                            SparkBuildInfo.spark_version());
        }
        return isSame;
    }

    /** Creates a source for one table: a source keeps the first table that it opens. */
    static Source create() {
        Source source = new Source();
        source.setShortName(NAME);
        return source;
    }

    /** Creates a source for one planned scan: a source keeps only one plan. */
    static PythonDataSourceV2 ofPlan(PythonDataSourceReadInfo plan) {
        PythonDataSourceV2 source = new PythonDataSourceV2();
        source.setShortName(NAME);
        source.setReadInfo(plan);
        return source;
    }
}
