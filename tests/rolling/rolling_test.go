package rolling_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// The codes of the command for "busy" and for "the store is not as it must be".
const busy, refused = 75, 78

// stores are one of each format of ours; start returns the URL of a new one. (kube has the record of
// s3, on a server that CI does not run.)
var stores = []struct {
	kind  string
	start func(t *testing.T) string
	does  does
}{
	{"redis", func(t *testing.T) string { return "redis://" + redis(t) }, does{waiters: true, tokens: true, races: true}},
	{"setnx", func(t *testing.T) string { return "redis://" + redis(t) + "?strategy=setnx" }, does{tokens: true, races: true, foreign: true}},
	{"redlock", func(t *testing.T) string { return "redlock://" + nodes(t) }, does{races: true, foreign: true}},
	{"file", func(t *testing.T) string { return "file://" + t.TempDir() }, does{waiters: true, tokens: true, races: true}},
	{"etcd", func(t *testing.T) string { return "etcd://" + backends.StartEtcd(t, backends.EtcdOptions{}).Addr }, does{waiters: true, tokens: true, races: true}},
	{"zookeeper", zookeeper, does{waiters: true, tokens: true, races: true}},
	{"postgres", func(t *testing.T) string { return backends.StartPostgres(t, backends.PostgresOptions{}).URL() }, does{waiters: true, tokens: true, races: true}},
	{"mysql", func(t *testing.T) string { return backends.StartMariaDB(t, backends.MariaDBOptions{}).URL() }, does{waiters: true, tokens: true, races: true}},
	{"s3", bucket, does{tokens: true}}, // moto looks, and writes later: a race there says nothing of us
}

// does has what one can ask of a store. foreign: its locks have the format of another library.
type does struct{ waiters, tokens, races, foreign bool }

func redis(t *testing.T) string { return backends.StartRedis(t, backends.RedisOptions{}).Addr }

func zookeeper(t *testing.T) string {
	return "zookeeper://" + backends.StartZooKeeper(t, backends.ZooKeeperOptions{}).Addr + "/hasp"
}

func nodes(t *testing.T) string {
	var addrs []string
	for _, n := range backends.StartRedisNodes(t, 3, backends.RedisOptions{}) {
		addrs = append(addrs, n.Addr)
	}
	return strings.Join(addrs, ",")
}

func bucket(t *testing.T) string {
	addr := backends.StartMoto(t)
	q := testkit.Must[*http.Request](t)(http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+addr+"/locks", nil))
	answer := testkit.Must[*http.Response](t)(http.DefaultClient.Do(q))
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Fatalf("the bucket: %s", answer.Status)
	}
	return "s3://locks/a?path_style=true&region=us-east-1&endpoint=http://" + addr
}

// A rolling upgrade: programs of both versions hold and wait in turn, on each store.
func TestInTurn(t *testing.T) {
	testtier.Long(t)
	before, now := built(t, "old", oldHasp), built(t, "new", newHasp)
	for _, s := range stores {
		t.Run(s.kind, func(t *testing.T) {
			before, now := before, now
			before.store = s.start(t)
			now.store = before.store
			inTurn(t, before, now, s.does)
		})
	}
}

// inTurn has each version hold while the other is refused a try and waits, twice, and then both race
// for a file that only a lock protects.
func inTurn(t *testing.T, before, now program, can does) {
	t.Helper()
	programs, last := []program{before, now, before, now, before}, int64(0)
	h := programs[0].begin(t)
	for i, waits := range programs[1:] {
		token := h.holds(t)
		if can.tokens && token <= last {
			t.Errorf("%s has token %d after %d", h.name, token, last)
		}
		last = token
		if err := waits.isExcluded(t); err != nil {
			t.Fatalf("while %s holds, %s: %v", h.name, waits.name, err)
		}
		next := waits.begin(t)
		if can.waiters {
			seen(t, programs[i])
			seen(t, waits)
		}
		select {
		case line := <-next.began:
			t.Fatalf("%s has got the lock of %s: %q", next.name, h.name, line)
		default:
		}
		h.release(t)
		h = next
	}
	h.holds(t)
	h.release(t)
	if can.races {
		if n := race(t, before, now); n != 2*additions {
			t.Errorf("%d after %d additions", n, 2*additions)
		}
	}
}

// isExcluded is an error if a try gets the lock, or says anything but "busy".
func (p program) isExcluded(t *testing.T) error {
	t.Helper()
	if code, said := p.ends(t, "run", "--wait", "0", "a/b", "--", "true"); code != busy {
		return fmt.Errorf("a try: exit code %d, %s", code, said)
	}
	return nil
}

// seen waits until the program's hasp who shows a holder, and one who waits.
func seen(t *testing.T, p program) {
	t.Helper()
	testkit.Until(t, p.name+" to show both", func() error {
		code, said := p.ends(t, "who", "a/b", "--json")
		if n := len(regexp.MustCompile(`"id":`).FindAllString(said, -1)); code != 0 || n != 2 {
			return fmt.Errorf("exit code %d, %d entries: %s", code, n, said)
		}
		return nil
	})
}

// additions are those of each program in a race.
const additions = 5

// race has all of them add to a number in a file, under the lock, and returns it.
func race(t *testing.T, all ...program) int {
	t.Helper()
	file := filepath.Join(t.TempDir(), "number")
	if err := os.WriteFile(file, []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	for _, p := range all {
		running.Go(func() {
			for range additions {
				if code, said := p.ends(t, "run", "number", "--", "sh", "-c", `n=$(cat "$0"); sleep 0.02; echo $((n+1)) >"$0"`, file); code != 0 {
					t.Errorf("%s: exit code %d, %s", p.name, code, said)
				}
			}
		})
	}
	running.Wait()
	text := testkit.Must[[]byte](t)(os.ReadFile(file))
	return testkit.Must[int](t)(strconv.Atoi(strings.TrimSpace(string(text))))
}

// The control: programs of two stores do not exclude each other, and the checks above say so.
func TestTwoStoresAreCaught(t *testing.T) {
	testtier.Long(t)
	one := built(t, "new", newHasp)
	other := one
	one.store, other.store = "file://"+t.TempDir(), "file://"+t.TempDir()
	h := one.begin(t)
	h.holds(t)
	if err := other.isExcluded(t); err == nil {
		t.Error("a try in another store counts as excluded")
	}
	h.release(t)
	testkit.Eventually(t, "an addition to be lost", func() bool { return race(t, one, other) < 2*additions })
}

// The next version has another number: who finds the place of the other version is refused with the
// cure, old or new, and the locks stay.
func TestNextNumber(t *testing.T) {
	testtier.Long(t)
	before, later := built(t, "old", oldHasp), built(t, "later", laterHasp)
	for _, s := range stores {
		t.Run(s.kind+"/old first", func(t *testing.T) { refuses(t, s.start(t), s.does.foreign, before, later) })
		t.Run(s.kind+"/later first", func(t *testing.T) { refuses(t, s.start(t), s.does.foreign, later, before) })
	}
}

// cures are what a refusal tells to do.
var cures = regexp.MustCompile(`update this program; or stop the newer ones|stop the older programs, and remove|cannot bring up to date: `)

// held is in the line of a lock that somebody has.
var held = regexp.MustCompile(`\bpid \d+`)

// refuses has the one program hold, and the other refused. Where the locks themselves are foreign, in
// the format of another library, the number is that of the mark beside them: who looks sees them.
func refuses(t *testing.T, store string, foreign bool, first, second program) {
	t.Helper()
	first.store, second.store = store, store
	h := first.begin(t)
	h.holds(t)
	for _, call := range [][]string{{"run", "--wait", "0", "a/b", "--", "true"}, {"run", "a/b", "--", "true"}, {"who", "a/b"}, {"ls"}} {
		code, said := second.ends(t, call...)
		looks := call[0] != "run" && foreign && (code == 0 && held.MatchString(said) || strings.Contains(said, "it cannot list names"))
		if !looks && (code != refused || !cures.MatchString(said)) {
			t.Errorf("%s %q while %s holds: exit code %d, %s", second.name, call, first.name, code, said)
		}
	}
	if code, said := first.ends(t, "who", "a/b", "--held"); code != 0 {
		t.Errorf("%s holds no longer: exit code %d, %s", first.name, code, said)
	}
	h.release(t)
}
