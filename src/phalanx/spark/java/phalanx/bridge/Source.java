package phalanx.bridge;

import java.util.Map;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceReadInfo;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructType;

/**
 * {@code format("phalanx")}: the source in Python, which plans and does all I/O, with rows that
 * travel faster and only the columns that a query needs. Spark takes this one before that.
 */
public final class Source extends PythonDataSourceV2 implements DataSourceRegister {
    static final String NAME = "phalanx";

    @Override
    public String shortName() {
        return NAME;
    }

    @Override
    public Table getTable(
            StructType schema, Transform[] partitioning, Map<String, String> properties) {
        return new BridgedTable(this, schema);
    }

    /** The same source for one scan, which is planned already: sources keep their only plan. */
    static PythonDataSourceV2 planned(PythonDataSourceReadInfo plan) {
        PythonDataSourceV2 alone = new PythonDataSourceV2();
        alone.setShortName(NAME);
        alone.setReadInfo(plan);
        return alone;
    }
}
