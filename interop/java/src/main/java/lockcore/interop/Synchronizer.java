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

/** What can be held, of any kind: a lock, or one permit of a semaphore. Leases and waits are in milliseconds. */
interface Synchronizer {
    /** Waits as long as it takes. What a lease of -1 means is up to the kind. */
    void acquire(long lease) throws InterruptedException;

    /** Waits for at most {@code wait}. */
    boolean tryAcquire(long wait, long lease) throws InterruptedException;

    /** Gives back what this thread has acquired last. */
    void release();

    /** The one of a kind: those of {@link LockCommands#named}, {@code permits} and {@code plain}. */
    static Synchronizer named(RedissonClient client, String kind, String name) {
        return switch (kind) {
            case "permits" -> new LeasedPermit(client, name);
            case "plain" -> new PlainPermit(client.getSemaphore(name));
            default -> new Lock(LockCommands.named(client, kind, name));
        };
    }

    /** With a lease of -1, the watchdog renews that of the client. */
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

    /** A permit of an {@link RPermitExpirableSemaphore}. With a lease of -1 it has no end. */
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

    /** A permit of an {@link RSemaphore}, which knows no leases. */
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
