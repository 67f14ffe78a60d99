package phalanx.bridge;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Base64;
import java.util.Collection;
import java.util.List;
import java.util.OptionalLong;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.types.StructType;

/** Aggregates that Python answers from metadata, without reading rows. */
final class AnsweredScan implements LocalScan, SupportsReportStatistics, Reads.ReportingScan {
    private final StructType columns;
    private final InternalRow[] rows;
    private final byte[] readSet;

    AnsweredScan(StructType columns, JsonNode answer, boolean isPastSnapshot) {
        JsonNode texts = answer.get("rows");
        this.columns = columns;
        JsonNode text = answer.get("read_set");
        boolean hasNone = isPastSnapshot || text.isNull();
        this.readSet = hasNone ? null : Base64.getDecoder().decode(text.asText());
        this.rows = new InternalRow[texts.size()];
        for (int i = 0; i < rows.length; i++) {
            rows[i] = Values.row(texts.get(i), columns);
        }
    }

    @Override
    public Collection<byte[]> readSets() {
        return readSet == null ? List.of() : List.of(readSet);
    }

    @Override
    public StructType readSchema() {
        return columns;
    }

    @Override
    public InternalRow[] rows() {
        return rows;
    }

    @Override
    public String description() {
        return "phalanx: answered from metadata";
    }

    @Override
    public Statistics estimateStatistics() {
        return new Statistics() {
            @Override
            public OptionalLong sizeInBytes() {
                return OptionalLong.of(Math.max(1, (long) rows.length * columns.defaultSize()));
            }

            @Override
            public OptionalLong numRows() {
                return OptionalLong.of(rows.length);
            }
        };
    }
}
