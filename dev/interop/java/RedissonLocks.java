import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Redisson's RLock: "plain" is renewed by its watchdog, "lease" is tryLock with a lease that
 * nobody renews, "reentrant" is taken twice each time and given back twice.
 */
final class RedissonLocks implements Client.Locker {
    private static final long HOUR = 3_600_000;

    private final String kind;
    private final int ttl;
    private final RedissonClient client;
    private RLock held;

    RedissonLocks(String kind, String address, int ttl) {
        this.kind = kind;
        this.ttl = ttl;
        Config config = new Config();
        config.setLockWatchdogTimeout(ttl);
        // Its 3 seconds for a request are too short for a machine that is busy.
        config.useSingleServer().setAddress("redis://" + address).setTimeout(60_000)
                .setConnectionPoolSize(4).setConnectionMinimumIdleSize(2);
        client = Redisson.create(config);
    }

    @Override
    public void lock(String name) throws Exception {
        RLock lock = client.getLock(name);
        switch (kind) {
            case "lease":
                if (!lock.tryLock(HOUR, ttl, TimeUnit.MILLISECONDS)) {
                    throw new IllegalStateException("not within an hour");
                }
                break;
            case "reentrant":
                lock.lock();
                lock.lock();
                break;
            default:
                lock.lock();
        }
        held = lock;
    }

    @Override
    public boolean tryLock(String name) throws Exception {
        RLock lock = client.getLock(name);
        boolean got = kind.equals("lease") ? lock.tryLock(0, ttl, TimeUnit.MILLISECONDS) : lock.tryLock();
        if (got) {
            if (kind.equals("reentrant")) {
                lock.lock();
            }
            held = lock;
        }
        return got;
    }

    @Override
    public void unlock() throws Exception {
        RLock lock = held;
        held = null;
        try {
            if (kind.equals("reentrant")) {
                lock.unlock();
                if (lock.getHoldCount() != 1) {
                    throw new Client.Lost("hold count " + lock.getHoldCount() + " after one of two unlocks");
                }
            }
            lock.unlock();
        } catch (IllegalMonitorStateException e) {
            throw new Client.Lost(e.getMessage());
        }
    }

    @Override
    public boolean check() {
        return held.isHeldByCurrentThread(); // asks the server
    }

    @Override
    public String version() {
        return "Redisson " + Client.versionOf(Redisson.class, "org.redisson", "redisson");
    }
}
