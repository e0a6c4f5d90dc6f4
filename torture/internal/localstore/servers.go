package localstore

import (
	"crypto/rand"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/hasplock/hasp/internal/serverprocess"
)

// Other users of this machine reach a port on its loopback interface. So the databases, whose
// superusers may run programs, have a password, and Redis refuses what could write files or load
// code. ZooKeeper and etcd have nothing to take but these locks.

// startRedis keeps every write in the append-only file, as it is when the server is killed.
func startRedis(s *server) error {
	program, err := find("redis-server", "/usr/bin/redis-server", "redis-server")
	if err == nil {
		err = s.prepare("redis", "", 1)
	}
	if err != nil {
		return err
	}
	s.url = &url.URL{Scheme: "redis", Host: serverprocess.Local(s.ports[0])}
	err = serverprocess.WriteFile(filepath.Join(s.dir, "redis.conf"), nil,
		"bind 127.0.0.1", fmt.Sprint("port ", s.ports[0]), "dir "+data, `save ""`, "appendonly yes",
		"user default on nopass ~* &* +@all -@admin")
	if err != nil {
		return err
	}
	return s.start(serverprocess.Command{Argv: []string{program, "redis.conf"}, Stop: serverprocess.Terminate})
}

func startEtcd(s *server) error {
	program, err := find("etcd", "/usr/bin/etcd", "etcd-server")
	if err == nil {
		err = s.prepare("etcd", "", 2)
	}
	if err != nil {
		return err
	}
	s.url = &url.URL{Scheme: "etcd", Host: serverprocess.Local(s.ports[0])}
	clients, peers := "http://"+s.url.Host, "http://"+serverprocess.Local(s.ports[1])
	return s.start(serverprocess.Command{Stop: serverprocess.Terminate, Argv: []string{program,
		"--name=one", "--data-dir=" + data, "--initial-cluster=one=" + peers, "--listen-peer-urls=" + peers, "--initial-advertise-peer-urls=" + peers,
		"--listen-client-urls=" + clients, "--advertise-client-urls=" + clients, "--logger=zap", "--log-level=warn",
		"--heartbeat-interval=50", "--election-timeout=500"}}) // leases from a second, and a restart within one
}

// startZooKeeper knows where Debian puts Java's packages; others have as many places as versions.
func startZooKeeper(s *server) error {
	java, err := find("java", "/usr/bin/java", "default-jre-headless")
	if err != nil {
		return err
	}
	const jars = "/usr/share/java/"
	if _, err := os.Stat(jars + "zookeeper.jar"); err != nil {
		return fmt.Errorf("ZooKeeper is not installed: there is no %szookeeper.jar (on Debian: apt install libzookeeper-java)", jars)
	}
	if err := s.prepare("zookeeper", "", 1); err != nil {
		return err
	}
	s.url = &url.URL{Scheme: "zookeeper", Host: serverprocess.Local(s.ports[0])}
	err = serverprocess.WriteFile(filepath.Join(s.dir, "zoo.cfg"), nil,
		"dataDir="+data, fmt.Sprint("clientPort=", s.ports[0]), "clientPortAddress=127.0.0.1", "admin.enableServer=false",
		"tickTime=500", "maxSessionTimeout=3600000", "maxClientCnxns=0", "extendedTypesEnabled=true", "preAllocSize=1024")
	if err != nil {
		return err
	}
	return s.start(serverprocess.Command{Stop: serverprocess.Terminate, Argv: []string{java, "-Xmx512m", "-Djava.awt.headless=true",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", jars + "zookeeper.jar:" + jars + "slf4j-simple.jar",
		"org.apache.zookeeper.server.quorum.QuorumPeerMain", "zoo.cfg"}})
}

func startPostgres(s *server) error {
	program, err := find("postgres", "/usr/lib/postgresql/*/bin/postgres", "postgresql")
	if err != nil {
		return err
	}
	initdb, err := find("initdb", "/usr/lib/postgresql/*/bin/initdb", "postgresql")
	if err == nil {
		err = s.prepare("postgres", "postgres", 1)
	}
	if err != nil {
		return err
	}
	password := rand.Text()
	s.url = &url.URL{Scheme: "postgres", Host: serverprocess.Local(s.ports[0]), Path: "/postgres", User: url.UserPassword("postgres", password), RawQuery: "sslmode=disable"}
	secret := filepath.Join(s.dir, "password")
	if err := serverprocess.WriteFile(secret, s.owner, password); err != nil {
		return err
	}
	if err := s.run(initdb, "-D", data, "-U", "postgres", "--pwfile="+secret, "--auth=scram-sha-256", "--no-sync", "--encoding=UTF8", "--locale=C"); err != nil {
		return err
	}
	s.gentle = true
	return s.start(serverprocess.Command{Stop: serverprocess.Interrupt, Env: []string{"LC_ALL=C"}, // Terminate would wait for clients
		Argv: []string{program, "-D", data, "-p", fmt.Sprint(s.ports[0]), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
			"-c", "max_connections=1000", "-c", "dynamic_shared_memory_type=mmap"}}) // in data, and removed with it
}

func startMariaDB(s *server) error {
	program, err := find("mariadbd", "/usr/sbin/mariadbd", "mariadb-server")
	if err != nil {
		return err
	}
	install, err := find("mariadb-install-db", "/usr/bin/mariadb-install-db", "mariadb-server")
	if err == nil {
		err = s.prepare("mariadb", "mysql", 1)
	}
	if err != nil {
		return err
	}
	password := rand.Text()
	s.url = &url.URL{Scheme: "mysql", Host: serverprocess.Local(s.ports[0]), Path: "/hasp", User: url.UserPassword("hasp", password)}
	first := filepath.Join(s.dir, "first.sql") // at each start; it accepts connections afterwards
	err = serverprocess.WriteFile(first, s.owner, "CREATE DATABASE IF NOT EXISTS hasp;",
		"CREATE USER IF NOT EXISTS hasp@'%' IDENTIFIED BY '"+password+"';", "GRANT ALL ON *.* TO hasp@'%';")
	if err != nil {
		return err
	}
	files := filepath.Join(s.dir, data)
	if err := s.run(install, "--no-defaults", "--datadir="+files, "--skip-test-db"); err != nil {
		return err
	}
	return s.start(serverprocess.Command{Stop: serverprocess.Terminate,
		Argv: []string{program, "--no-defaults", "--datadir=" + files, "--tmpdir=" + s.dir, "--socket=" + filepath.Join(s.dir, "socket"), "--init-file=" + first,
			fmt.Sprint("--port=", s.ports[0]), "--bind-address=127.0.0.1", "--skip-name-resolve", "--max-connections=1000", "--innodb-log-file-size=16M"}})
}

// find returns the path of a program: that in PATH, or else the newest at Debian's place, which no
// user's PATH has for some.
func find(name, place, deb string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return filepath.Abs(path)
	}
	if found, _ := filepath.Glob(place); len(found) > 0 { // a pattern of ours
		return found[len(found)-1], nil
	}
	return "", fmt.Errorf("%s is not installed: it is neither in PATH nor at %s (on Debian: apt install %s)", name, place, deb)
}

// prepare gives a server its ports, its directory and, where this process is root, the account that
// Debian's package has made for it: databases refuse to run as root.
func (s *server) prepare(name, account string, ports int) (err error) {
	if account != "" {
		if s.owner, err = serverprocess.AccountFor(account); err != nil {
			return fmt.Errorf("root cannot start %s without its account: %w", name, err)
		}
	}
	if s.ports, s.free, err = serverprocess.ReservePorts(ports); err != nil {
		return err
	}
	if s.dir, err = serverprocess.NewDir(name, s.owner); err != nil {
		return err
	}
	if account != "" {
		return nil // they make it
	}
	return os.Mkdir(filepath.Join(s.dir, data), 0o700)
}

// run runs a program that prepares the data, to its end.
func (s *server) run(program string, args ...string) error {
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.SysProcAttr = s.dir, serverprocess.Attributes(s.owner)
	cmd.Env = append(cmd.Environ(), "TMPDIR="+s.dir) // ours may be closed to the account
	if words, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(program), err, strings.TrimSpace(string(words)))
	}
	return nil
}

func (s *server) start(c serverprocess.Command) (err error) {
	c.Name, c.Dir, c.User, c.Ready, c.Release = filepath.Base(c.Argv[0])+" "+s.url.Host, s.dir, s.owner, s.ready, s.free
	s.Process, err = serverprocess.Start(c)
	return err
}
