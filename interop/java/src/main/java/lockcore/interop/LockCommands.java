package lockcore.interop;

import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;

/**
 * Everything that is an {@link RLock}. The first three arguments are the client, the kind and the name; leases and waits are
 * in milliseconds, and a lease of -1 is one that the watchdog renews.
 */
final class LockCommands {
    private final Clients clients;

    LockCommands(Clients clients) {
        this.clients = clients;
    }

    Map<String, Command> commands() {
        return Map.of(
                "lock", arguments -> lock(clients.of(arguments), of(arguments), arguments.number(3)),
                "tryLock", arguments ->
                        of(arguments).tryLock(arguments.number(3), arguments.number(4), TimeUnit.MILLISECONDS),
                "unlock", arguments -> unlock(of(arguments)),
                "forceUnlock", arguments -> of(arguments).forceUnlock(),
                "isLocked", arguments -> of(arguments).isLocked(),
                "isHeld", arguments -> of(arguments).isHeldByCurrentThread(),
                "holdCount", arguments -> of(arguments).getHoldCount(),
                "remainTimeToLive", arguments -> of(arguments).remainTimeToLive());
    }

    private RLock of(Arguments arguments) {
        return named(clients.of(arguments), arguments.text(1), arguments.text(2));
    }

    /** The lock of a kind; the other kinds of RLock are further cases. */
    static RLock named(RedissonClient client, String kind, String name) {
        return switch (kind) {
            case "reentrant" -> client.getLock(name);
            case "fair" -> client.getFairLock(name);
            default -> throw new IllegalArgumentException("no such kind of lock: " + kind);
        };
    }

    /** Answers with the owner as Redisson writes it, so that others can look for it. */
    private static String lock(RedissonClient client, RLock lock, long lease) {
        lock.lock(lease, TimeUnit.MILLISECONDS);
        return client.getId() + ":" + Thread.currentThread().getId();
    }

    private static boolean unlock(RLock lock) {
        lock.unlock();
        return true;
    }
}
