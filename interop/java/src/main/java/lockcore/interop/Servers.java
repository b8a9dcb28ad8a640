package lockcore.interop;

import java.util.stream.Stream;
import org.redisson.config.BaseMasterSlaveServersConfig;
import org.redisson.config.Config;
import org.redisson.config.ReadMode;
import org.redisson.config.ShardedSubscriptionMode;

/**
 * The servers of a client. The URLs have lockcore's format, so that both sides get the same one.
 */
final class Servers {
    private static final String SENTINEL = "redis+sentinel://";
    private static final String CLUSTER = "redis+cluster://";

    /** The interval in ms of checks for changes of a cluster; Redisson's default is 5 s. */
    private static final int SCAN_INTERVAL = 1000;

    private Servers() {
    }

    /**
     * {@code redis://host:port}, {@code redis+sentinel://host:port,host:port/name} or {@code
     * redis+cluster://host:port,host:port}.
     */
    static void configure(Config config, String url, ShardedSubscriptionMode mode) {
        if (url.startsWith(SENTINEL)) {
            String[] group = url.substring(SENTINEL.length()).split("/");
            replicated(config.useSentinelServers().setMasterName(group[1]).addSentinelAddress(addresses(group[0])));
        } else if (url.startsWith(CLUSTER)) {
            replicated(config.useClusterServers()
                    .addNodeAddress(addresses(url.substring(CLUSTER.length())))
                    .setScanInterval(SCAN_INTERVAL)
                    .setShardedSubscriptionMode(mode));
        } else {
            config.useSingleServer().setAddress(url).setConnectionMinimumIdleSize(2).setConnectionPoolSize(16);
        }
    }

    private static String[] addresses(String list) {
        return Stream.of(list.split(",")).map(address -> "redis://" + address).toArray(String[]::new);
    }

    /** The work under the locks reads recent writes, which a replica may not have yet. */
    private static void replicated(BaseMasterSlaveServersConfig<?> servers) {
        servers.setReadMode(ReadMode.MASTER);
        servers.setMasterConnectionMinimumIdleSize(2);
        servers.setMasterConnectionPoolSize(16);
    }
}
