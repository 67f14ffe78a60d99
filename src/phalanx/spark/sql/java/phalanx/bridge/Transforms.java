package phalanx.bridge;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.Transform;

/** Converts between Spark's transforms and the JSON of partition fields. */
final class Transforms {
    private Transforms() {}

    static ArrayNode toJson(Transform[] transforms) {
        ArrayNode found = Planner.JSON.createArrayNode();
        for (Transform each : transforms) {
            ObjectNode tree = found.addObject();
            tree.put("call", each.name());
            tree.set("args", ExpressionTree.of(each.arguments()));
        }
        return found;
    }

    static Transform[] of(JsonNode fields) {
        Transform[] found = new Transform[fields.size()];
        for (int i = 0; i < found.length; i++) {
            found[i] = of(fields.get(i), fields.get(i).get("name").asText());
        }
        return found;
    }

    private static Transform of(JsonNode field, String name) {
        JsonNode columns = field.get("columns");
        String[] paths = new String[columns.size()];
        for (int i = 0; i < paths.length; i++) {
            paths[i] = quote(columns.get(i));
        }
        JsonNode parameters = field.get("parameters");
        if (name.equals("identity")) {
            return Expressions.identity(paths[0]);
        }
        if (name.equals("bucket")) {
            return Expressions.bucket(parameters.get(0).asInt(), paths);
        }
        List<Expression> arguments = new ArrayList<>();
        for (JsonNode each : parameters) {
            Object value = each.isInt() ? (Object) each.asInt() : each.asText();
            arguments.add(Expressions.literal(value));
        }
        for (String path : paths) {
            arguments.add(Expressions.column(path));
        }
        return Expressions.apply(name, arguments.toArray(new Expression[0]));
    }

    private static String quote(JsonNode path) {
        List<String> parts = new ArrayList<>();
        for (JsonNode part : path) {
            parts.add("`" + part.asText().replace("`", "``") + "`");
        }
        return String.join(".", parts);
    }
}
