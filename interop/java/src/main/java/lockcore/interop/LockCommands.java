package lockcore.interop;

import java.util.Map;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;

/**
 * The verbs that only an {@link RLock} has. The first three arguments are the client, the kind and
 * the name; {@code lockAndGetToken client name} has no kind.
 */
record LockCommands(Clients clients) {
    Map<String, Command> commands() {
        return Map.of(
                "lockAndGetToken", arguments -> clients.of(arguments).getFencedLock(arguments.text(1)).lockAndGetToken(),
                "forceUnlock", arguments -> of(arguments).forceUnlock(),
                "isLocked", arguments -> of(arguments).isLocked(),
                "isHeld", arguments -> of(arguments).isHeldByCurrentThread(),
                "holdCount", arguments -> of(arguments).getHoldCount(),
                "remainTimeToLive", arguments -> of(arguments).remainTimeToLive());
    }

    private RLock of(Arguments arguments) {
        return named(clients.of(arguments), arguments.text(1), arguments.text(2));
    }

    /** The lock of a kind. */
    static RLock named(RedissonClient client, String kind, String name) {
        return switch (kind) {
            case "reentrant" -> client.getLock(name);
            case "fair" -> client.getFairLock(name);
            case "read" -> client.getReadWriteLock(name).readLock();
            case "write" -> client.getReadWriteLock(name).writeLock();
            default -> throw new IllegalArgumentException("no such kind of lock: " + kind);
        };
    }
}
