package phalanx.bridge;

import org.apache.spark.SparkThrowable;

/** A request that Phalanx refuses, in one line. Spark shows a SparkThrowable without its stack. */
final class InvalidRequest extends IllegalArgumentException implements SparkThrowable {
    InvalidRequest(String message) {
        super(message);
    }

    @Override
    public String getCondition() {
        return null;
    }
}
