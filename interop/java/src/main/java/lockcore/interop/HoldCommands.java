package lockcore.interop;

import java.util.Map;

/**
 * The verbs of every {@link Synchronizer}. The first three arguments are the client, the kind and
 * the name; leases and waits are in milliseconds.
 */
record HoldCommands(Clients clients) {
    Map<String, Command> commands() {
        return Map.of(
                "acquire", this::acquire,
                "tryAcquire", arguments -> of(arguments).tryAcquire(arguments.number(3), arguments.number(4)),
                "release", this::release);
    }

    /** Answers with the owner as Redisson writes it, so that others can look for it. */
    private String acquire(Arguments arguments) throws InterruptedException {
        of(arguments).acquire(arguments.number(3));
        return clients.of(arguments).getId() + ":" + Thread.currentThread().getId();
    }

    private boolean release(Arguments arguments) {
        of(arguments).release();
        return true;
    }

    private Synchronizer of(Arguments arguments) {
        return Synchronizer.named(clients.of(arguments), arguments.text(1), arguments.text(2));
    }
}
