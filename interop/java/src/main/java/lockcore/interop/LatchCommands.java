package lockcore.interop;

import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RCountDownLatch;

/** {@link RCountDownLatch}. The first two arguments are the client and the name. */
record LatchCommands(Clients clients) {
    Map<String, Command> commands() {
        return Map.of(
                "trySetCount", arguments -> of(arguments).trySetCount(arguments.number(2)),
                "countDown", this::countDown,
                "getCount", arguments -> of(arguments).getCount(),
                "await", arguments -> of(arguments).await(arguments.number(2), TimeUnit.MILLISECONDS),
                "deleteLatch", arguments -> of(arguments).delete());
    }

    /** {@code countDown client name times}. */
    private boolean countDown(Arguments arguments) {
        RCountDownLatch latch = of(arguments);
        for (long time = 0; time < arguments.number(2); time++) {
            latch.countDown();
        }
        return true;
    }

    private RCountDownLatch of(Arguments arguments) {
        return clients.of(arguments).getCountDownLatch(arguments.text(1));
    }
}
