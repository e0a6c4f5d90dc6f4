package simulation

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

// twins are real servers, and those of the simulation, to which the same happens: restarts, failovers,
// what INFO counts.
type twins struct {
	t     *testing.T
	real  []*backends.Redis
	world *world
	ids   map[string]string // the real ids, by those of the simulation
	said  []string          // what has happened
}

func newTwins(t *testing.T) *twins {
	w := &twins{t: t, world: newWorld(config{servers: 2}, newInterpreter(), nil), ids: map[string]string{}}
	w.world.epoch = 0
	for _, s := range w.world.servers {
		s.old = backends.RedisVersion() == "6.2"
		real := backends.StartRedis(t, backends.RedisOptions{Config: []string{"repl-diskless-sync-delay 0", "repl-ping-replica-period 1"}})
		w.real = append(w.real, real)
	}
	w.world.servers[1].unlink()
	w.world.servers[1].master = nil
	for i := range w.real {
		w.start(i, file{data: newData()}) // which forgets hasp:new, and how the world was made
	}
	return w
}

func (w *twins) do(n int, args ...string) string {
	w.t.Helper()
	text, err := w.real[n].Do(args...)
	if err != nil {
		w.t.Fatalf("%v at %d: %v, after %v", args, n, err, w.said)
	}
	return text
}

// start has a process begin with a file: the real one has it on its disk.
func (w *twins) start(n int, f file) {
	if err := w.real[n].Kill(); err != nil {
		w.t.Fatal(err)
	}
	if err := w.real[n].Restart(); err != nil {
		w.t.Fatal(err)
	}
	s := w.world.servers[n]
	s.die()
	s.master = nil // REPLICAOF was no line of the configuration
	s.start(f)
}

// happen does one thing to a server, or to both.
func (w *twins) happen(what string, n int) {
	w.said = append(w.said, fmt.Sprint(what, " ", n))
	s, other := w.world.servers[n], w.world.servers[1-n]
	master := func(f func(), args ...string) {
		if s.master == nil {
			w.do(n, args...)
			f()
		}
	}
	switch what {
	case "write":
		master(func() {
			e := &execution{server: s, now: s.now()}
			e.do([]string{"SET", "k", fmt.Sprint(len(w.said))})
			s.written()
		}, "SET", "k", fmt.Sprint(len(w.said)))
	case "flush":
		master(s.flushAll, "FLUSHALL")
	case "swap":
		master(s.swapDB, "SWAPDB", "0", "1")
	case "reset":
		w.do(n, "CONFIG", "RESETSTAT")
		s.resetStat()
	case "restart": // with what it saves now
		testkit.Eventually(w.t, "SAVE", func() bool { // another may be under way, for a replica
			_, err := w.real[n].Do("SAVE")
			return err == nil
		})
		w.start(n, s.save())
	case "promote":
		w.do(n, "REPLICAOF", "NO", "ONE")
		s.promote()
	case "follow":
		if s.master != nil || other.master != nil {
			return
		}
		host, port, _ := strings.Cut(w.real[1-n].Addr, ":")
		w.do(n, "REPLICAOF", host, port)
		s.attach(other)
	}
	w.settle()
	for n := range w.real {
		w.compare(n)
	}
}

// settle waits until the real replicas have what their master has.
func (w *twins) settle() {
	for n, s := range w.world.servers {
		if s.master == nil {
			continue
		}
		testkit.Eventually(w.t, "the replica", func() bool {
			here, there := w.info(n), w.info(1-n)
			return here["master_link_status"] == "up" && here["master_repl_offset"] == there["master_repl_offset"] && here["master_replid"] == there["master_replid"]
		})
	}
}

func (w *twins) info(n int) map[string]string {
	fields := map[string]string{}
	for _, section := range []string{"server", "replication", "commandstats"} {
		for line := range strings.Lines(w.do(n, "INFO", section)) {
			if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
				fields[key] = value
			}
		}
	}
	return fields
}

// compare looks at what scripts look at.
func (w *twins) compare(n int) {
	w.t.Helper()
	real, s := w.info(n), w.world.servers[n]
	model := map[string]string{}
	text := (&execution{server: s, now: s.now()}).info(nil).(string)
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		model[key] = value
	}
	for _, id := range []string{"run_id", "master_replid"} {
		if known := w.ids[model[id]]; known == "" {
			for of, was := range w.ids {
				if was == real[id] {
					w.t.Fatalf("%s of %d is new in the simulation, and at Redis that which was %s, after %v", id, n, of, w.said)
				}
			}
			w.ids[model[id]] = real[id]
		} else if known != real[id] {
			w.t.Fatalf("%s of %d is an old one in the simulation, and a new one at Redis, after %v", id, n, w.said)
		}
	}
	if model["role"] != real["role"] || (model["second_repl_offset"] == "-1") != (real["second_repl_offset"] == "-1") {
		w.t.Fatalf("%d is %s with second_repl_offset %s, at Redis %s with %s, after %v", n, model["role"], model["second_repl_offset"], real["role"], real["second_repl_offset"], w.said)
	}
	for _, name := range []string{"flushall", "swapdb", "config|resetstat", "restore"} {
		if a, b := model["cmdstat_"+name] != "", real["cmdstat_"+name] != ""; a != b {
			w.t.Fatalf("cmdstat_%s of %d is told: %v, at Redis: %v, after %v", name, n, a, b, w.said)
		}
	}
	value := "(nil)"
	if v := s.data.db[0]["k"]; v != nil {
		value = v.text
	}
	if got := w.do(n, "GET", "k"); got != value {
		w.t.Fatalf("the key of %d has %s, at Redis %s, after %v", n, value, got, w.said)
	}
}

// TestHistories lets the same happen to real servers and to those of the simulation.
func TestHistories(t *testing.T) {
	for _, text := range []string{
		"write 0,follow 1,write 0,promote 1,write 1,follow 0,write 1",
		"follow 1,flush 0,swap 0,promote 1,reset 1,flush 1",
		"write 0,restart 0,write 0", "follow 1,write 0,promote 1,restart 1", "follow 1,write 0,restart 0",
	} {
		w := newTwins(t)
		for line := range strings.SplitSeq(text, ",") {
			what, n, _ := strings.Cut(line, " ")
			w.happen(what, int(n[0]-'0'))
		}
	}
	if testing.Short() {
		return
	}
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	for range 6 {
		w := newTwins(t)
		for range 10 {
			w.happen(pick(r, []string{"write", "write", "flush", "swap", "reset", "restart", "promote", "follow", "follow"}), r.IntN(2))
		}
	}
}

// TestWait asks whether a simulated server says that a replica has a write at least when Redis does.
func TestWait(t *testing.T) {
	w := newTwins(t)
	w.happen("follow", 1)
	server, err := redisconn.Open(t.Context(), redisconn.Config{Addrs: []string{w.real[0].Addr}, ConnectTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	writes := redisconn.NewScript(func() string { return "return redis.call('SET', KEYS[1], ARGV[1])" })
	reads := redisconn.NewScript(func() string { return "return redis.call('GET', KEYS[1])" })
	c := &client{world: w.world, slots: map[uint16]int{}}
	ask := func(s *redisconn.Script) (model, real bool) {
		call := redisconn.Call{Keys: []string{"k"}, Args: []string{"x"}}
		r := server.Eval(t.Context(), s, call, 1)
		m := (&conn{c, w.world}).Eval(context.Background(), s, call, 1)
		return m.Err == nil, r.Err == nil
	}
	for _, s := range []*redisconn.Script{writes, reads} {
		if model, real := ask(s); !model || !real {
			t.Errorf("with a replica: %v, at Redis %v", model, real)
		}
	}
	if err := w.real[1].Pause(); err != nil {
		t.Fatal(err)
	}
	w.world.servers[1].lags = true
	if model, real := ask(writes); model || real {
		t.Errorf("a write that no replica has is confirmed: %v, at Redis %v", model, real)
	}
	if model, real := ask(reads); real && !model {
		t.Error("Redis takes it that a script which has written nothing is confirmed, and the simulation does not")
	}
	if err := w.real[1].Resume(); err != nil {
		t.Fatal(err)
	}
}
