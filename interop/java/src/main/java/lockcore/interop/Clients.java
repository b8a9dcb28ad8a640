package lockcore.interop;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import org.redisson.config.ShardedSubscriptionMode;

/** The Redisson instances, by id: each is a separate client, as if in another process. */
final class Clients {
    private final Map<String, RedissonClient> clients = new ConcurrentHashMap<>();

    Map<String, Command> commands() {
        return Map.of(
                "connect", this::connect,
                "close", arguments -> close(arguments.text(0)),
                "versions", arguments -> versions());
    }

    /** The client whose id is the first argument of a request. */
    RedissonClient of(Arguments arguments) {
        RedissonClient client = clients.get(arguments.text(0));
        if (client == null) {
            throw new IllegalArgumentException("no such client: " + arguments.text(0));
        }
        return client;
    }

    /**
     * {@code connect url watchdogMs fairWaitMs shardedSubscriptionMode}: the id of a new client,
     * the prefix of the owners of its holds. A wait of 0 selects Redisson's default.
     */
    private String connect(Arguments arguments) {
        Config config = new Config();
        config.setLockWatchdogTimeout(arguments.number(1));
        if (arguments.number(2) > 0) {
            config.setFairLockWaitTimeout(arguments.number(2));
        }
        config.setThreads(4);
        config.setNettyThreads(4);
        Servers.configure(config, arguments.text(0), ShardedSubscriptionMode.valueOf(arguments.text(3)));
        return add(config);
    }

    /** Adds a new client, and returns its id. */
    String add(Config config) {
        RedissonClient client = Redisson.create(config);
        clients.put(client.getId(), client);
        return client.getId();
    }

    /**
     * {@code close client}: shuts the client down cleanly; its holds stay, as Redisson leaves them.
     */
    private boolean close(String id) {
        RedissonClient client = clients.remove(id);
        if (client != null) {
            client.shutdown(0, 2, TimeUnit.SECONDS);
        }
        return client != null;
    }

    /** {@code versions}: those of Redisson and of Java. */
    private static String versions() {
        return Redisson.class.getPackage().getImplementationVersion() + " " + Runtime.version();
    }
}
