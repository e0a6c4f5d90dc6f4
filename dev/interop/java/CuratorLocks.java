import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * Curator's InterProcessMutex and both sides of its InterProcessReadWriteLock. As its
 * documentation demands, a ConnectionStateListener decides whether a held lock still counts.
 */
final class CuratorLocks implements Client.Locker {
    private final String kind;
    private final CuratorFramework client;
    private InterProcessMutex held;
    private volatile String told;

    CuratorLocks(String kind, String address, int ttl) throws Exception {
        this.kind = kind;
        client = CuratorFrameworkFactory.newClient(address, ttl, 60_000, new ExponentialBackoffRetry(50, 10));
        client.getConnectionStateListenable().addListener((c, state) -> {
            if (!state.isConnected()) {
                told = state.name();
            }
        });
        client.start();
        if (!client.blockUntilConnected(60, TimeUnit.SECONDS)) {
            throw new IllegalStateException("no connection to " + address);
        }
    }

    private InterProcessMutex mutex(String name) {
        String path = "/locks/" + name;
        switch (kind) {
            case "read":
                return new InterProcessReadWriteLock(client, path).readLock();
            case "write":
                return new InterProcessReadWriteLock(client, path).writeLock();
            default:
                return new InterProcessMutex(client, path);
        }
    }

    @Override
    public void lock(String name) throws Exception {
        told = null;
        InterProcessMutex mutex = mutex(name);
        mutex.acquire();
        held = mutex;
    }

    @Override
    public boolean tryLock(String name) throws Exception {
        told = null;
        InterProcessMutex mutex = mutex(name);
        // A time of 0 would give up before the first answer has come.
        if (!mutex.acquire(200, TimeUnit.MILLISECONDS)) {
            return false;
        }
        held = mutex;
        return true;
    }

    @Override
    public void unlock() throws Exception {
        held.release(); // says nothing if the node is gone
        held = null;
    }

    @Override
    public boolean check() throws Exception {
        if (told != null) {
            throw new Client.Lost("connection listener: " + told);
        }
        return held.isAcquiredInThisProcess();
    }

    @Override
    public String version() {
        return "Curator " + Client.versionOf(InterProcessMutex.class, "org.apache.curator", "curator-recipes");
    }
}
