import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.time.temporal.ChronoUnit;

/** Java's side of the protocol that protocol.go describes. */
public final class Client {
    /** A library's lock. */
    interface Locker {
        void lock(String name) throws Exception;

        boolean tryLock(String name) throws Exception;

        void unlock() throws Exception;

        boolean check() throws Exception;

        String version();
    }

    /** The library says that the lock was lost. */
    static final class Lost extends Exception {
        Lost(String text) {
            super(text);
        }
    }

    private final Locker locker;

    private Client(Locker locker) {
        this.locker = locker;
    }

    public static void main(String[] args) throws Exception {
        String address = System.getenv("HASP_ADDRESS");
        int ttl = Integer.parseInt(System.getenv("HASP_TTL_MS"));
        Locker locker = args[0].equals("curator")
                ? new CuratorLocks(args[1], address, ttl)
                : new RedissonLocks(args[1], address, ttl);
        Client client = new Client(locker);
        say("ready " + locker.version());
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String answer;
            try {
                answer = client.answer(line.split(" "));
            } catch (Lost e) {
                answer = "lost " + e.getMessage();
            } catch (Exception e) {
                answer = "error: " + e;
            }
            say(answer.replace('\n', ' '));
        }
        System.exit(0); // the libraries' threads would go on
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "lock":
                locker.lock(words[1]);
                return micros();
            case "try":
                return locker.tryLock(words[1]) ? micros() : "busy";
            case "unlock":
                String before = micros();
                locker.unlock();
                return before;
            case "check":
                return locker.check() ? "held" : "lost";
            case "count":
                count(Integer.parseInt(words[1]), Integer.parseInt(words[2]), Path.of(words[3]), words[4]);
                return micros();
            default:
                return "error: no such command";
        }
    }

    private void count(int rounds, int pause, Path file, String name) throws Exception {
        for (int i = 0; i < rounds; i++) {
            locker.lock(name);
            increment(file);
            locker.unlock();
            Thread.sleep(pause);
        }
    }

    private static void increment(Path file) throws Exception {
        String text = Files.readString(file).strip();
        Thread.sleep(1);
        int n = text.isEmpty() ? 0 : Integer.parseInt(text);
        Files.writeString(file, String.valueOf(n + 1));
    }

    private static String micros() {
        return "ok " + ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
    }

    /** The version that a library's own jar was published under. */
    static String versionOf(Class<?> library, String group, String artifact) {
        String path = "/META-INF/maven/" + group + "/" + artifact + "/pom.properties";
        try (var in = library.getResourceAsStream(path)) {
            var properties = new java.util.Properties();
            properties.load(in);
            return properties.getProperty("version");
        } catch (Exception e) {
            return "of unknown version";
        }
    }
}
