package lockcore.interop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * Redisson, driven by lines on stdin. A request is one line with fields separated by tabs, and is
 * answered by one line:
 *
 * <pre>
 *   id thread verb argument ...      in
 *   id ok value                      out
 *   id error ExceptionClass message  out
 * </pre>
 *
 * Requests with the same thread name run one after the other on one Java thread, which is their
 * owner for Redisson; those with different names run concurrently. The verb {@code halt} ends the
 * process at once, without an answer and without any clean-up, like a crash. The end of stdin ends
 * it as well.
 */
public final class Main {
    private final Map<String, Command> commands = new HashMap<>();
    private final Map<String, ExecutorService> threads = new HashMap<>();
    private final PrintStream replies;

    private Main(PrintStream replies) {
        this.replies = replies;
        Clients clients = new Clients();
        commands.putAll(clients.commands());
        commands.putAll(new HoldCommands(clients).commands());
        commands.putAll(new LockCommands(clients).commands());
        commands.putAll(new SemaphoreCommands(clients).commands());
        commands.putAll(new LatchCommands(clients).commands());
        commands.putAll(new Contention(clients).commands());
        commands.putAll(new Benchmark(clients).commands());
    }

    /** Reads requests until stdin ends. */
    public static void main(String[] arguments) throws IOException {
        PrintStream replies = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        // Nobody else may write into the protocol.
        System.setOut(System.err);
        Main main = new Main(replies);
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            main.accept(List.of(line.split("\t", -1)));
        }
        Runtime.getRuntime().halt(0);
    }

    private void accept(List<String> request) {
        String id = request.get(0);
        if (request.size() < 3) {
            reply(id, "error", "ProtocolException", "a request has an id, a thread and a verb");
            return;
        }
        String verb = request.get(2);
        if (verb.equals("halt")) {
            Runtime.getRuntime().halt(137);
        }
        thread(request.get(1)).execute(() -> carryOut(id, verb, new Arguments(request.subList(3, request.size()))));
    }

    private ExecutorService thread(String name) {
        return threads.computeIfAbsent(name, key -> Executors.newSingleThreadExecutor(body -> {
            Thread thread = new Thread(body, key);
            thread.setDaemon(true);
            return thread;
        }));
    }

    private void carryOut(String id, String verb, Arguments arguments) {
        try {
            Command command = commands.get(verb);
            if (command == null) {
                throw new IllegalArgumentException("no such verb: " + verb);
            }
            reply(id, "ok", String.valueOf(command.run(arguments)));
        } catch (Throwable failure) {
            reply(id, "error", failure.getClass().getSimpleName(), String.valueOf(failure.getMessage()));
        }
    }

    private void reply(String... fields) {
        StringBuilder line = new StringBuilder();
        for (String field : fields) {
            line.append(line.isEmpty() ? "" : "\t").append(field.replaceAll("[\\t\\r\\n]+", " "));
        }
        synchronized (replies) {
            replies.println(line);
        }
    }
}
