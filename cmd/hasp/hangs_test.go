//go:build unix

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testtier"
)

// A store that answers reads and takes no entry has not said that the lock is busy: a job with
// --skip-ok would be skipped on every machine, with exit code 0.
func TestReadsAndTakesNoEntry(t *testing.T) {
	stall := map[string]func(t *testing.T) (store string){
		"redis": func(t *testing.T) string {
			server := backends.StartRedis(t, backends.RedisOptions{})
			exits(t, 0, server.URL())
			redisDo(t, server, "CLIENT", "PAUSE", "600000", "WRITE")
			t.Cleanup(func() { _, _ = server.Do("CLIENT", "UNPAUSE") })
			return server.URL()
		},
		"setnx": func(t *testing.T) string {
			server := backends.StartRedis(t, backends.RedisOptions{})
			store := server.URL() + "?strategy=setnx"
			exits(t, 0, store)
			redisDo(t, server, "CLIENT", "PAUSE", "600000", "WRITE")
			t.Cleanup(func() { _, _ = server.Do("CLIENT", "UNPAUSE") })
			return store
		},
		"postgres, locked": func(t *testing.T) string {
			server := backends.StartPostgres(t, backends.PostgresOptions{})
			exits(t, 0, server.URL())
			postgresDo(t, server, "BEGIN; LOCK TABLE hasp_names, hasp_entries IN SHARE MODE")
			return server.URL()
		},
		"postgres, standby away": func(t *testing.T) string {
			server := backends.StartPostgres(t, backends.PostgresOptions{})
			exits(t, 0, server.URL())
			postgresDo(t, server, "ALTER SYSTEM SET synchronous_standby_names = 'away'")
			postgresDo(t, server, "SELECT pg_reload_conf()")
			return server.URL()
		},
		"mysql, locked": func(t *testing.T) string {
			server := backends.StartMariaDB(t, backends.MariaDBOptions{})
			exits(t, 0, server.URL())
			mariaDo(t, server, "FLUSH TABLES WITH READ LOCK")
			return server.URL()
		},
	}
	for name, stalled := range stall {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, file := stalled(t), filepath.Join(t.TempDir(), "ran")
			for _, args := range [][]string{{"run", "--skip-ok", "--wait", "3s", "job", "--", "touch", file}, {"run", "--wait", "100ms", "job", "--", "touch", file}} {
				code, _, errOut := hasp(t, store, args...)
				if code != 69 || strings.Contains(errOut, "busy") || !strings.Contains(errOut, "hasp: the store did not answer in time: lock \"job\" at ") {
					t.Errorf("%v: exit code %d, %s", args[:3], code, errOut)
				}
			}
			if _, err := os.Stat(file); err == nil {
				t.Error("the job has run")
			}
		})
	}
}

// --wait 3s ends within 4.5 s, also where the server is stopped, if the machine has nothing else to
// do. It was ten seconds and more, of which the look at who holds had ten for itself.
func TestHangingServer(t *testing.T) {
	testtier.Long(t)
	for name, start := range hanging {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, pause := start(t)
			exits(t, 0, store)
			if err := pause(); err != nil {
				t.Fatal(err)
			}
			for _, args := range [][]string{{"run", "--skip-ok", "--wait", "3s", "job", "--", "true"}, {"wait", "--wait", "3s", "job"}, {"hold", "-w", "3s", "job"}} {
				began := time.Now()
				hasp(t, store, "--version")
				idle := time.Since(began) // what a process costs on this machine now
				began = time.Now()
				code, _, errOut := hasp(t, store, args...)
				took := time.Since(began)
				if code != 69 || took > 8*time.Second+4*idle {
					t.Errorf("%v: exit code %d after %s, %s", args, code, took, errOut)
				}
				t.Logf("%v: %s: %s", args, took, errOut)
			}
		})
	}
}

// hanging are the stores, and what stops each.
var hanging = map[string]func(t *testing.T) (store string, pause func() error){
	"redis":    redisWith(""),
	"setnx":    redisWith("?strategy=setnx"),
	"redisson": redisWith("?strategy=redisson"),
	"redlock": func(t *testing.T) (string, func() error) {
		nodes, addrs := backends.StartRedisNodes(t, 3, backends.RedisOptions{}), []string(nil)
		for _, n := range nodes {
			addrs = append(addrs, n.Addr)
		}
		return "redlock://" + strings.Join(addrs, ","), func() error { return errors.Join(nodes[0].Pause(), nodes[2].Pause()) }
	},
	"cluster": func(t *testing.T) (string, func() error) {
		c := backends.StartRedisCluster(t)
		return "redis://" + strings.Join(c.Addrs(), ","), func() error { return pauseAll(c.Nodes) }
	},
	"sentinel": func(t *testing.T) (string, func() error) {
		store, s := sentinelStore(t)
		return store, func() error { return pauseAll([]*backends.Redis{s.Master, s.Replica}) }
	},
	"sentinel, all of it": func(t *testing.T) (string, func() error) {
		store, s := sentinelStore(t)
		return store, func() error { return pauseAll(append(s.Sentinels, s.Master, s.Replica)) }
	},
	"postgres": postgresWith(""),
	"advisory": postgresWith("strategy=advisory"),
	"mysql":    mariaWith(""),
	"getlock":  mariaWith("strategy=getlock"),
	"etcd": func(t *testing.T) (string, func() error) {
		s := backends.StartEtcd(t, backends.EtcdOptions{})
		return "etcd://" + s.Addr, s.Pause
	},
	"zookeeper": func(t *testing.T) (string, func() error) {
		s := backends.StartZooKeeper(t, backends.ZooKeeperOptions{})
		return "zookeeper://" + s.Addr, s.Pause
	},
	"serve": func(t *testing.T) (string, func() error) {
		addr, p := startServerProcess(t, backends.StartRedis(t, backends.RedisOptions{}).URL())
		t.Cleanup(func() { _ = p.Signal(syscall.SIGCONT) })
		return "hasp+" + addr, func() error { return p.Signal(syscall.SIGSTOP) }
	},
	"serve, its store": func(t *testing.T) (string, func() error) {
		s := backends.StartRedis(t, backends.RedisOptions{})
		addr := startServer(t, s.URL())
		t.Cleanup(func() { _ = s.Resume() })
		return "hasp+" + addr, s.Pause
	},
}

func sentinelStore(t *testing.T) (store string, s *backends.RedisSentinel) {
	s = backends.StartRedisSentinel(t)
	var addrs []string
	for _, one := range s.Sentinels {
		addrs = append(addrs, one.Addr)
	}
	return "redis://" + strings.Join(addrs, ",") + "?sentinel=" + s.MasterName, s
}

func pauseAll(servers []*backends.Redis) (err error) {
	for _, s := range servers {
		err = errors.Join(err, s.Pause())
	}
	return err
}

func redisWith(query string) func(*testing.T) (string, func() error) {
	return func(t *testing.T) (string, func() error) {
		s := backends.StartRedis(t, backends.RedisOptions{})
		return s.URL() + query, s.Pause
	}
}

func postgresWith(parameter string) func(*testing.T) (string, func() error) {
	return func(t *testing.T) (string, func() error) {
		s := backends.StartPostgres(t, backends.PostgresOptions{})
		return withParameter(s.URL(), parameter), s.Pause
	}
}

func mariaWith(parameter string) func(*testing.T) (string, func() error) {
	return func(t *testing.T) (string, func() error) {
		s := backends.StartMariaDB(t, backends.MariaDBOptions{})
		return withParameter(s.URL(), parameter), s.Pause
	}
}

func withParameter(store, parameter string) string {
	switch {
	case parameter == "":
		return store
	case strings.Contains(store, "?"):
		return store + "&" + parameter
	}
	return store + "?" + parameter
}
