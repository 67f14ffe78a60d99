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
 * {@code format("phalanx")}: the source in Python, which plans and does all I/O, with rows that
 * travel faster, and what a query needs told to it. Spark takes this one before that.
 */
public final class Source extends PythonDataSourceV2 implements DataSourceRegister {
    static final String NAME = "phalanx";

    // The classes below are Spark's own, which change with its version.
    private static final String BUILT_FOR = builtFor();
    private static final boolean IS_FOR_THIS_SPARK = checked();

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

    private static boolean checked() {
        boolean is = BUILT_FOR.equals(SparkBuildInfo.spark_version());
        if (!is) {
            LoggerFactory.getLogger(Source.class)
                    .warn(
                            "The classes of Phalanx are for Spark {}, and this is Spark {}: tables"
                                    + " are read by the Python source alone, all columns and all"
                                    + " partitions of them. Leave spark.jars to"
                                    + " phalanx.spark.configure.",
                            BUILT_FOR,
                            SparkBuildInfo.spark_version());
        }
        return is;
    }

    /** The same source for one scan, which is planned already: sources keep their only plan. */
    static PythonDataSourceV2 planned(PythonDataSourceReadInfo plan) {
        PythonDataSourceV2 alone = new PythonDataSourceV2();
        alone.setShortName(NAME);
        alone.setReadInfo(plan);
        return alone;
    }
}
