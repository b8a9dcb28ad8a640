package lockcore.interop;

import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;

/**
 * Something that can be held: a lock, or one permit of a semaphore. Leases and waits are in
 * milliseconds.
 */
interface Synchronizer {
    /** Waits as long as it takes. The meaning of a lease of -1 depends on the kind. */
    void acquire(long lease) throws InterruptedException;

    /** Waits for at most {@code wait}. */
    boolean tryAcquire(long wait, long lease) throws InterruptedException;

    /** Releases the last acquisition of this thread. */
    void release();

    /**
     * The synchronizer of a kind: those of {@link LockCommands#named}, {@code permits} and {@code
     * plain}.
     */
    static Synchronizer named(RedissonClient client, String kind, String name) {
        return switch (kind) {
            case "permits" -> new LeasedPermit(client, name);
            case "plain" -> new PlainPermit(client.getSemaphore(name));
            default -> new Lock(LockCommands.named(client, kind, name));
        };
    }

    /** With a lease of -1, the watchdog renews the lease of the client. */
    record Lock(RLock lock) implements Synchronizer {
        @Override
        public void acquire(long lease) {
            lock.lock(lease, TimeUnit.MILLISECONDS);
        }

        @Override
        public boolean tryAcquire(long wait, long lease) throws InterruptedException {
            return lock.tryLock(wait, lease, TimeUnit.MILLISECONDS);
        }

        @Override
        public void release() {
            lock.unlock();
        }
    }

    /** A permit of an {@link RPermitExpirableSemaphore}. With a lease of -1 it never expires. */
    record LeasedPermit(RedissonClient client, String name) implements Synchronizer {
        /** The ids of the permits of a thread, by client and name. */
        private static final ThreadLocal<Map<String, Deque<String>>> HELD = ThreadLocal.withInitial(HashMap::new);

        @Override
        public void acquire(long lease) throws InterruptedException {
            held().push(semaphore().acquire(lease, TimeUnit.MILLISECONDS));
        }

        @Override
        public boolean tryAcquire(long wait, long lease) throws InterruptedException {
            String permit = semaphore().tryAcquire(wait, lease, TimeUnit.MILLISECONDS);
            if (permit != null) {
                held().push(permit);
            }
            return permit != null;
        }

        @Override
        public void release() {
            semaphore().release(held().pop());
        }

        private RPermitExpirableSemaphore semaphore() {
            return client.getPermitExpirableSemaphore(name);
        }

        private Deque<String> held() {
            return HELD.get().computeIfAbsent(client.getId() + " " + name, key -> new ArrayDeque<>());
        }
    }

    /** A permit of an {@link RSemaphore}, which has no leases. */
    record PlainPermit(RSemaphore semaphore) implements Synchronizer {
        @Override
        public void acquire(long lease) throws InterruptedException {
            semaphore.acquire();
        }

        @Override
        public boolean tryAcquire(long wait, long lease) throws InterruptedException {
            return semaphore.tryAcquire(1, Duration.ofMillis(wait));
        }

        @Override
        public void release() {
            semaphore.release();
        }
    }
}
