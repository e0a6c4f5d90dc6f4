package mysqllock_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/serverprocess"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
	"github.com/hasplock/hasp/internal/testtier"
	"github.com/hasplock/hasp/mysqllock"
)

// galeraNodes are a Galera cluster of n nodes on this machine. Those after the first get their data
// from it, with rsync.
func galeraNodes(t *testing.T, n int) (nodes []*backends.MariaDB) {
	t.Helper()
	const provider = "/usr/lib/galera/libgalera_smm.so"
	if _, err := os.Stat(provider); err != nil {
		t.Skipf("no Galera on this machine (%v)", err)
	}
	ports, release, err := serverprocess.ReservePorts(3 * n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	first := serverprocess.Local(ports[0])
	for i := range n {
		listen, state, later := serverprocess.Local(ports[3*i]), serverprocess.Local(ports[3*i+1]), serverprocess.Local(ports[3*i+2])
		cluster := "gcomm://"
		if i > 0 {
			cluster += first
		}
		m := backends.StartMariaDB(t, backends.MariaDBOptions{Config: []string{
			"wsrep_on=ON", "wsrep_provider=" + provider, "wsrep_cluster_address=" + cluster, "binlog_format=ROW",
			"innodb_autoinc_lock_mode=2", "wsrep_node_address=127.0.0.1", "wsrep_sst_method=rsync", "wsrep_sst_receive_address=" + state,
			"wsrep_provider_options=gmcast.listen_addr=tcp://" + listen + ";ist.recv_addr=" + later}})
		admin := sqlkit.MariaDBAdmin(t, m)
		testkit.Eventually(t, "the node belongs to the cluster", func() bool {
			var value string
			err := admin.QueryRow("SHOW GLOBAL STATUS LIKE 'wsrep_ready'").Scan(new(string), &value)
			return err == nil && value == "ON" && sqlkit.MySQLStatus(t, admin, "wsrep_cluster_size") == int64(i+1)
		})
		nodes = append(nodes, m)
	}
	return nodes
}

// A node of a Galera cluster: GET_LOCK is refused there, and the doctor says why. The control
// is a server that is no node.
func TestGalera(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	base := sqlkit.MariaDBStore(t, galeraNodes(t, 1)[0])
	testkit.Release(t, testkit.Lock(t, client(t, base), "a"))
	if !told(findings(t, base), driver.Warn, "galera", "undo each other") {
		t.Error("the doctor does not warn of Galera")
	}
	if !told(findings(t, sqlkit.With(base, "strategy="+string(mysqllock.StrategyGetLock))), driver.Bad, "galera", "two clients can hold") {
		t.Error("the doctor does not warn of GET_LOCK on Galera")
	}
	if _, err := client(t, sqlkit.With(base, "strategy="+string(mysqllock.StrategyGetLock))).Mutex("a").Lock(ctx(t)); !errors.Is(err, driver.ErrUnsupported) {
		t.Errorf("GET_LOCK on Galera: %v", err)
	}
	alone := sqlkit.With(sqlkit.MariaDBStore(t, backends.SharedMariaDB(t)), "strategy="+string(mysqllock.StrategyGetLock))
	testkit.Release(t, testkit.Lock(t, client(t, alone), "galera"))
	if told(findings(t, alone), driver.Bad, "galera", "") {
		t.Error("the doctor takes every server for a node")
	}
}

// Two nodes whose clients want one name at once undo each other's transactions. Even so each of
// them gets its turn, one at a time, and soon; also where they create the tables at once, in each
// third round.
func TestGaleraPair(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	const rounds, most = 30, 15 * time.Second
	var urls []string
	for _, m := range galeraNodes(t, 2) {
		for range 3 {
			urls = append(urls, sqlkit.MariaDBStore(t, m))
		}
	}
	var (
		clients []*hasp.Client
		slowest time.Duration
	)
	for round := range rounds {
		if round%3 == 0 {
			clients = nil
			for _, u := range urls {
				clients = append(clients, client(t, sqlkit.With(u, fmt.Sprintf("prefix=hasp%d_", round))))
			}
		}
		last := everyTurn(t, clients, fmt.Sprint("pair-", round))
		if last > most {
			t.Errorf("round %d: the last grant took %v", round, last)
		}
		slowest = max(slowest, last)
	}
	t.Logf("the last of %d was granted after %v or less", len(urls), slowest)
}

// everyTurn has all clients lock one name at once, hold it and release it, one at a time, and
// returns how long the last of them waited.
func everyTurn(t *testing.T, clients []*hasp.Client, name string) time.Duration {
	var (
		inside atomic.Int64
		waited = make([]time.Duration, len(clients))
		wg     sync.WaitGroup
	)
	for i, c := range clients {
		wg.Go(func() {
			began := time.Now()
			l, err := c.Mutex(name).Lock(ctx(t))
			if err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
			waited[i] = time.Since(began)
			if n := inside.Add(1); n != 1 {
				t.Errorf("%s: %d hold", name, n)
			}
			time.Sleep(10 * time.Millisecond)
			inside.Add(-1)
			if err := l.Release(ctx(t)); err != nil {
				t.Errorf("%s: release: %v", name, err)
			}
		})
	}
	wg.Wait()
	return slices.Max(waited)
}
