package phalanx.bridge;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.File;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentLinkedDeque;
import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.errors.QueryCompilationErrors$;

/** Python, which plans: a process that stays, and answers one question at a time, in JSON. */
final class Planner {
    static final ObjectMapper JSON = new ObjectMapper();

    private static final String MODULE = "phalanx.spark.sql.planner";
    private static final int MOST_IDLE = 2;
    // The one that answered last is asked first: it knows the query.
    private static final ConcurrentLinkedDeque<Planner> IDLE = new ConcurrentLinkedDeque<>();

    private final Process process;
    private final DataOutputStream questions;
    private final DataInputStream answers;

    private Planner(PythonFunction python) throws IOException {
        ProcessBuilder builder = new ProcessBuilder(python.pythonExec(), "-m", MODULE);
        Map<String, String> environment = builder.environment();
        List<String> paths = new ArrayList<>();
        paths.add(PythonUtils.sparkPythonPath());
        for (String path :
                new String[] {python.envVars().get("PYTHONPATH"), environment.get("PYTHONPATH")}) {
            if (path != null && !path.isEmpty()) {
                paths.add(path);
            }
        }
        environment.putAll(python.envVars());
        environment.put("PYTHONPATH", String.join(File.pathSeparator, paths));
        // Modules in the folder that Spark runs in are not meant.
        environment.put("PYTHONSAFEPATH", "1");
        builder.redirectError(ProcessBuilder.Redirect.INHERIT);
        process = builder.start();
        questions = new DataOutputStream(new BufferedOutputStream(process.getOutputStream()));
        answers = new DataInputStream(process.getInputStream());
    }

    /** The answer to a question; an error of Python's is one of the query. */
    static JsonNode ask(PythonFunction python, ObjectNode question) {
        JsonNode answer = answer(python, question);
        if (answer.has("error")) {
            throw failed(answer.get("error").asText());
        }
        return answer;
    }

    /** The answer to a question, which may be an error. */
    static JsonNode answer(PythonFunction python, ObjectNode question) {
        try {
            return asked(python, JSON.writeValueAsBytes(question));
        } catch (IOException error) {
            throw failed("its planner in Python has ended: " + error.getMessage());
        }
    }

    private static JsonNode asked(PythonFunction python, byte[] question) throws IOException {
        Planner waiting = IDLE.pollFirst();
        if (waiting != null) {
            try {
                return waiting.answered(question);
            } catch (IOException error) {
                // It was ended by someone else; another one answers the same.
                waiting.process.destroy();
            }
        }
        Planner fresh = new Planner(python);
        try {
            return fresh.answered(question);
        } catch (IOException error) {
            fresh.process.destroy();
            throw error;
        }
    }

    private JsonNode answered(byte[] question) throws IOException {
        questions.writeInt(question.length);
        questions.write(question);
        questions.flush();
        byte[] answer = new byte[answers.readInt()];
        answers.readFully(answer);
        if (IDLE.size() < MOST_IDLE) {
            IDLE.addFirst(this);
        } else {
            process.destroy();
        }
        return JSON.readTree(answer);
    }

    private static RuntimeException failed(String why) {
        Throwable error =
                QueryCompilationErrors$.MODULE$.pythonDataSourceError("plan", "read", why);
        return sneaky(error);
    }

    /** Spark's errors of analysis are checked exceptions, which Scala does not know. */
    @SuppressWarnings("unchecked")
    private static <E extends Throwable> RuntimeException sneaky(Throwable error) throws E {
        throw (E) error;
    }
}
