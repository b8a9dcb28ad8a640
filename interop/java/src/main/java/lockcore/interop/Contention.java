package lockcore.interop;

import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.redisson.api.RAtomicLong;
import org.redisson.api.RBucket;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;

/**
 * {@code contend client holds name keys rounds limit}: acquires repeatedly, and does work inside
 * that too many at a time would spoil.
 *
 * <p>{@code holds} are the kinds that are acquired in turn, each with its weight: {@code
 * read:1,write:1000}. No more than {@code limit} may be inside, by weight; a hold with that weight
 * excludes everybody.
 *
 * <p>The Rust suite does the same with the same keys: {@code <keys>:inside} is the sum of the
 * weights inside, {@code <keys>:last} is the side of the last hold, and {@code <keys>:work} counts
 * the holds that exclude everybody: it is read and written back in two steps. Other holds must find
 * it unchanged. The answer is {@code overlaps switches most}: how often the work was spoilt, how
 * often the previous hold was the other side's, and the maximum number inside together.
 */
record Contention(Clients clients) {
    private static final String SIDE = "java";
    private static final long LEASE_OF_THE_KIND = -1;

    Map<String, Command> commands() {
        return Map.of("contend", arguments -> {
            RedissonClient client = clients.of(arguments);
            Work work = new Work(client, arguments.text(3), arguments.number(5));
            List<Turn> turns = Stream.of(arguments.text(1).split(","))
                    .map(hold -> Turn.of(client, hold, arguments.text(2)))
                    .toList();
            for (int round = 0; round < arguments.number(4); round++) {
                work.carryOut(turns.get(round % turns.size()));
            }
            return work.overlaps + " " + work.switches + " " + work.most;
        });
    }

    private record Turn(Synchronizer synchronizer, long weight) {
        static Turn of(RedissonClient client, String hold, String name) {
            String[] parts = hold.split(":");
            return new Turn(Synchronizer.named(client, parts[0], name), Long.parseLong(parts[1]));
        }
    }

    private static final class Work {
        private final RAtomicLong inside;
        private final RBucket<String> last;
        private final RBucket<String> work;
        private final long limit;
        private long overlaps;
        private long switches;
        private long most;

        Work(RedissonClient client, String keys, long limit) {
            this.inside = client.getAtomicLong(keys + ":inside");
            this.last = client.getBucket(keys + ":last", StringCodec.INSTANCE);
            this.work = client.getBucket(keys + ":work", StringCodec.INSTANCE);
            this.limit = limit;
        }

        void carryOut(Turn turn) throws InterruptedException {
            turn.synchronizer.acquire(LEASE_OF_THE_KIND);
            try {
                boolean isAlone = turn.weight == limit;
                long together = inside.addAndGet(turn.weight);
                overlaps += together > limit ? 1 : 0;
                most = Math.max(most, isAlone ? 1 : together);
                String found = work.get();
                switches += SIDE.equals(last.getAndSet(SIDE)) ? 0 : 1;
                if (isAlone) {
                    work.set(String.valueOf(Long.parseLong(found) + 1));
                } else {
                    overlaps += work.get().equals(found) ? 0 : 1;
                }
                inside.addAndGet(-turn.weight);
            } finally {
                turn.synchronizer.release();
            }
        }
    }
}
