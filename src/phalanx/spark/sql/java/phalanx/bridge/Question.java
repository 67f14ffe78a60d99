package phalanx.bridge;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Base64;
import java.util.UUID;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceCreationResult;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Some;

/** What Python is asked about one scan: about which table, and by which conditions. */
final class Question {
    private final Source source;
    private final ObjectNode about;

    Question(
            Source source,
            StructType schema,
            CaseInsensitiveStringMap options,
            boolean changesRows) {
        this.source = source;
        PythonDataSourceCreationResult made =
                source.getOrCreateDataSourceInPython(Source.NAME, options, new Some<>(schema));
        about = Planner.JSON.createObjectNode();
        about.put("query", UUID.randomUUID().toString());
        about.put("source", Base64.getEncoder().encodeToString(made.dataSource()));
        about.put("changes_rows", changesRows);
        about.put("zone", SQLConf.get().sessionLocalTimeZone());
        about.putArray("conditions");
    }

    private Question(Source source, ObjectNode about) {
        this.source = source;
        this.about = about;
    }

    Question where(ArrayNode conditions) {
        return with("conditions", conditions);
    }

    Question with(String name, JsonNode value) {
        ObjectNode more = about.deepCopy();
        more.set(name, value);
        return new Question(source, more);
    }

    JsonNode ask(String what) {
        ObjectNode question = about.deepCopy();
        question.put("ask", what);
        return Planner.ask(source.source().dataSourceCls(), question);
    }

    /** Two questions are the same if they are about the same rows, whoever asks. */
    @Override
    public boolean equals(Object other) {
        return other instanceof Question question && rows().equals(question.rows());
    }

    @Override
    public int hashCode() {
        return rows().hashCode();
    }

    private ObjectNode rows() {
        ObjectNode rows = about.deepCopy();
        rows.remove("query");
        return rows;
    }
}
