package lockcore.interop;

import java.util.Map;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;

/**
 * The verbs that only semaphores have. The first three arguments are the client, the kind, {@code
 * permits} or {@code plain}, and the name.
 */
record SemaphoreCommands(Clients clients) {
    Map<String, Command> commands() {
        return Map.of(
                "trySetPermits", this::trySetPermits,
                "availablePermits", this::availablePermits,
                "releasePermits", this::releasePermits,
                "setPermits", this::setPermits,
                "getPermits", arguments -> leased(arguments).getPermits(),
                "acquiredPermits", arguments -> leased(arguments).acquiredPermits());
    }

    private boolean trySetPermits(Arguments arguments) {
        int permits = Math.toIntExact(arguments.number(3));
        return isLeased(arguments)
                ? leased(arguments).trySetPermits(permits)
                : plain(arguments).trySetPermits(permits);
    }

    private int availablePermits(Arguments arguments) {
        return isLeased(arguments) ? leased(arguments).availablePermits() : plain(arguments).availablePermits();
    }

    /**
     * Returns permits that another client has taken: an {@link RSemaphore} does not track their
     * owners.
     */
    private boolean releasePermits(Arguments arguments) {
        plain(arguments).release(Math.toIntExact(arguments.number(3)));
        return true;
    }

    private boolean setPermits(Arguments arguments) {
        leased(arguments).setPermits(Math.toIntExact(arguments.number(3)));
        return true;
    }

    private static boolean isLeased(Arguments arguments) {
        return arguments.text(1).equals("permits");
    }

    private RPermitExpirableSemaphore leased(Arguments arguments) {
        return clients.of(arguments).getPermitExpirableSemaphore(arguments.text(2));
    }

    private RSemaphore plain(Arguments arguments) {
        return clients.of(arguments).getSemaphore(arguments.text(2));
    }
}
