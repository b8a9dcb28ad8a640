package lockcore.interop;

import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RAtomicLong;
import org.redisson.api.RBucket;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;

/**
 * {@code contend client kind name keys rounds}: takes the lock again and again, and does inside what two at a time would spoil.
 *
 * <p>The Rust suite does the very same with the same keys: {@code <keys>:inside} counts who is inside, and
 * {@code <keys>:work} has the number of holds so far and the side of the last one, read and written back without any help of
 * Redis. Answers {@code overlaps switches}: how often somebody else was inside, and how often the hold before was the other
 * side's.
 */
final class Contention {
    private static final String SIDE = "java";
    private final Clients clients;

    Contention(Clients clients) {
        this.clients = clients;
    }

    Map<String, Command> commands() {
        return Map.of("contend", arguments -> contend(
                clients.of(arguments),
                LockCommands.named(clients.of(arguments), arguments.text(1), arguments.text(2)),
                arguments.text(3),
                arguments.number(4)));
    }

    private static String contend(RedissonClient client, RLock lock, String keys, long rounds) {
        RAtomicLong inside = client.getAtomicLong(keys + ":inside");
        RBucket<String> work = client.getBucket(keys + ":work", StringCodec.INSTANCE);
        long overlaps = 0;
        long switches = 0;
        for (long round = 0; round < rounds; round++) {
            lock.lock(-1, TimeUnit.MILLISECONDS);
            try {
                overlaps += inside.incrementAndGet() == 1 ? 0 : 1;
                String[] last = work.get().split(" ");
                switches += last[1].equals(SIDE) ? 0 : 1;
                work.set((Long.parseLong(last[0]) + 1) + " " + SIDE);
                inside.decrementAndGet();
            } finally {
                lock.unlock();
            }
        }
        return overlaps + " " + switches;
    }
}
