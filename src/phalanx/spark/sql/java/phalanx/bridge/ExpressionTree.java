package phalanx.bridge;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.spark.sql.connector.expressions.Cast;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Extract;
import org.apache.spark.sql.connector.expressions.GeneralScalarExpression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;

/** Spark expressions as JSON, which Python translates to predicates. */
final class ExpressionTree {
    private static final String UNKNOWN = "UNKNOWN";

    private ExpressionTree() {}

    static ArrayNode of(Expression[] expressions) {
        ArrayNode trees = Planner.JSON.createArrayNode();
        for (Expression each : expressions) {
            trees.add(of(each));
        }
        return trees;
    }

    static ObjectNode of(Expression expression) {
        ObjectNode tree = Planner.JSON.createObjectNode();
        if (expression instanceof NamedReference reference) {
            ArrayNode path = tree.putArray("column");
            for (String name : reference.fieldNames()) {
                path.add(name);
            }
        } else if (expression instanceof Literal<?> literal) {
            if (!Values.hasText(literal.value())) {
                return call(tree, UNKNOWN, new Expression[0]);
            }
            tree.put("value", Values.text(literal.value()));
            tree.put("type", literal.dataType().typeName());
        } else if (expression instanceof Cast cast) {
            call(tree, "CAST", cast.children()).put("type", cast.dataType().typeName());
        } else if (expression instanceof Extract extract) {
            call(tree, "EXTRACT", extract.children()).put("field", extract.field());
        } else if (expression instanceof GeneralScalarExpression function) {
            call(tree, function.name(), function.children());
        } else {
            call(tree, UNKNOWN, new Expression[0]);
        }
        return tree;
    }

    private static ObjectNode call(ObjectNode tree, String name, Expression[] args) {
        tree.put("call", name);
        tree.set("args", of(args));
        return tree;
    }
}
