package lockcore.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * The measurements of Redisson for {@code benches/}. The loops run here, so that the communication
 * with this process is not measured. The first argument of every verb but the first is the client;
 * names are a prefix and a number. Times are in nanoseconds.
 */
final class Benchmark {
    private static final int WARMING_UP = 0;
    private static final int MEASURING = 1;
    private static final int ENDING = 2;

    /** The number of threads that acquire many names and keep them. */
    private static final int HOLDERS = 16;

    /** The number of waiters that begin at a time. */
    private static final int AT_A_TIME = 64;

    private final Clients clients;
    private final Queue<CompletableFuture<Long>> grants = new ConcurrentLinkedQueue<>();
    private final AtomicReference<Thread> last = new AtomicReference<>();
    private volatile int phase;

    Benchmark(Clients clients) {
        this.clients = clients;
    }

    Map<String, Command> commands() {
        return Map.of(
                "benchConnect", arguments -> connect(arguments.text(0), arguments.number(1)),
                "benchLoad", this::load,
                "benchAcquire", this::acquire,
                "benchRelease", this::release,
                "benchHold", this::hold,
                "benchWait", this::waitFor,
                "benchAwait", this::await,
                "benchGrants", arguments -> grants(),
                "benchNest", this::nest);
    }

    /** {@code url watchdogMs}: a client with Redisson's defaults, except for the watchdog. */
    private String connect(String url, long watchdog) {
        Config config = new Config();
        config.setLockWatchdogTimeout(watchdog);
        String cluster = "redis+cluster://";
        if (url.startsWith(cluster)) {
            for (String node : url.substring(cluster.length()).split(",")) {
                config.useClusterServers().addNodeAddress("redis://" + node);
            }
        } else {
            config.useSingleServer().setAddress(url);
        }
        return clients.add(config);
    }

    /**
     * {@code client one|each name tasks warmUpMs measuredMs}: the results of the threads, in the
     * format of {@code redisson.rs}.
     */
    private String load(Arguments arguments) throws Exception {
        RedissonClient client = clients.of(arguments);
        boolean isOne = arguments.text(1).equals("one");
        String name = arguments.text(2);
        int tasks = (int) arguments.number(3);
        phase = WARMING_UP;
        ExecutorService threads = Executors.newFixedThreadPool(tasks);
        try {
            List<Future<Pairs>> running = IntStream.range(0, tasks)
                    .mapToObj(task -> client.getLock(isOne ? name : name + "-" + task))
                    .map(lock -> threads.submit((Callable<Pairs>) () -> pairs(lock)))
                    .toList();
            Thread.sleep(arguments.number(4));
            long begun = System.nanoTime();
            phase = MEASURING;
            Thread.sleep(arguments.number(5));
            phase = ENDING;
            return line(System.nanoTime() - begun, running);
        } finally {
            threads.shutdownNow();
        }
    }

    private Pairs pairs(RLock lock) {
        Pairs pairs = new Pairs();
        while (true) {
            long asked = System.nanoTime();
            lock.lock();
            long waited = System.nanoTime() - asked;
            boolean isHandedOver = last.getAndSet(Thread.currentThread()) != Thread.currentThread();
            lock.unlock();
            pairs.all++;
            if (phase == MEASURING) {
                pairs.measured++;
                pairs.handOvers += isHandedOver ? 1 : 0;
                pairs.waits.merge(threeDigits(waited), 1L, Long::sum);
            } else if (phase == ENDING) {
                return pairs;
            }
        }
    }

    private static String line(long took, List<Future<Pairs>> running) throws Exception {
        long all = 0;
        long handOvers = 0;
        List<String> measured = new ArrayList<>();
        Map<Long, Long> waits = new TreeMap<>();
        for (Future<Pairs> future : running) {
            Pairs pairs = future.get();
            all += pairs.all;
            handOvers += pairs.handOvers;
            measured.add(String.valueOf(pairs.measured));
            pairs.waits.forEach((wait, count) -> waits.merge(wait, count, Long::sum));
        }
        String histogram =
                waits.entrySet().stream().map(e -> e.getKey() + ":" + e.getValue()).collect(Collectors.joining(" "));
        return took + " " + all + " " + handOvers + ";" + String.join(" ", measured) + ";" + histogram;
    }

    private static long threeDigits(long time) {
        long unit = 1;
        while (time / unit >= 1000) {
            unit *= 10;
        }
        return time / unit * unit;
    }

    /** {@code client name}: the time of the grant. */
    private long acquire(Arguments arguments) {
        clients.of(arguments).getLock(arguments.text(1)).lock();
        return System.nanoTime();
    }

    /** {@code client name}: the start of the release. */
    private long release(Arguments arguments) {
        RLock lock = clients.of(arguments).getLock(arguments.text(1));
        long begun = System.nanoTime();
        lock.unlock();
        return begun;
    }

    /**
     * {@code client prefix from count}: acquires {@code count} names and keeps them, on a few
     * threads.
     */
    private boolean hold(Arguments arguments) throws Exception {
        RedissonClient client = clients.of(arguments);
        long from = arguments.number(2);
        long end = from + arguments.number(3);
        ExecutorService threads = Executors.newFixedThreadPool(HOLDERS);
        try {
            List<Future<?>> running = new ArrayList<>();
            for (long first = from; first < from + HOLDERS; first++) {
                long number = first;
                running.add(threads.submit(() -> {
                    for (long next = number; next < end; next += HOLDERS) {
                        client.getLock(arguments.text(1) + "-" + next).lock();
                    }
                }));
            }
            for (Future<?> holder : running) {
                holder.get();
            }
            return true;
        } finally {
            threads.shutdown();
        }
    }

    /** {@code client prefix names count}: starts {@code count} waiters for {@code names} names. */
    private boolean waitFor(Arguments arguments) {
        RedissonClient client = clients.of(arguments);
        for (long number = 0; number < arguments.number(3); number++) {
            RLock lock = client.getLock(arguments.text(1) + "-" + number % arguments.number(2));
            lock.lockAsync(number);
            if (number % AT_A_TIME == 0) {
                // Those before have been sent: more than that at a time would wait too long for a
                // connection, and fail.
                lock.isLocked();
            }
        }
        return true;
    }

    /** {@code client prefix count}: starts one waiter for each of {@code count} names. */
    private boolean await(Arguments arguments) {
        RedissonClient client = clients.of(arguments);
        for (long number = 0; number < arguments.number(2); number++) {
            RLock lock = client.getLock(arguments.text(1) + "-" + number);
            long thread = number;
            CompletionStage<Long> granted = lock.lockAsync(thread).thenApply(done -> {
                long had = System.currentTimeMillis() * 1_000_000;
                lock.unlockAsync(thread);
                return had;
            });
            grants.add(granted.toCompletableFuture());
        }
        return true;
    }

    /** The times of those grants, by the wall clock. */
    private String grants() {
        List<String> stamps = new ArrayList<>();
        for (CompletableFuture<Long> granted = grants.poll(); granted != null; granted = grants.poll()) {
            stamps.add(String.valueOf(granted.join()));
        }
        return String.join(" ", stamps);
    }

    /**
     * {@code client samples pairs}: the time of a pair inside a hold, for each sample of that many
     * pairs.
     */
    private String nest(Arguments arguments) {
        RLock lock = clients.of(arguments).getLock("nested");
        List<String> times = new ArrayList<>();
        lock.lock();
        for (long sample = 0; sample < arguments.number(1); sample++) {
            long begun = System.nanoTime();
            for (long pair = 0; pair < arguments.number(2); pair++) {
                lock.lock();
                lock.unlock();
            }
            times.add(String.valueOf((System.nanoTime() - begun) / arguments.number(2)));
        }
        lock.unlock();
        return String.join(" ", times);
    }

    /** The results of one thread. */
    private static final class Pairs {
        private final Map<Long, Long> waits = new TreeMap<>();
        private long measured;
        private long all;
        private long handOvers;
    }
}
