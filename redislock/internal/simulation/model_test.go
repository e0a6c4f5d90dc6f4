package simulation

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/redislock"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
	"github.com/hasplock/hasp/redislock/internal/setnx"
)

// TestModel asks whether a simulated server answers as Redis does: calls of every script, as
// clients make them, and then with arguments, pasts and types that no client makes.
func TestModel(t *testing.T) {
	w := newTwin(t)
	for _, strategy := range []redislock.Strategy{redislock.StrategyQueue, redislock.StrategySetNX, redislock.StrategyRedisson} {
		w.use(strategy)
	}
	key := setnx.CompanionPrefix + "t:{x}"
	w.Eval(t.Context(), setnx.Publish, redisconn.Call{Keys: []string{"x", key, key}, Args: []string{"me ", "1", "1 text"}}, 0) // redlock's
	w.Eval(t.Context(), setnx.Format, redisconn.Call{Keys: []string{"x"}}, 0)
	scripts := map[string][]sample{}
	for _, s := range w.samples {
		scripts[s.script.Text()] = append(scripts[s.script.Text()], s)
	}
	if len(scripts) < 22 {
		t.Errorf("the clients have used %d scripts", len(scripts))
	}
	n := 3000
	if testing.Short() {
		n = 600
	}
	texts := slices.Sorted(func(yield func(string) bool) {
		for text := range scripts {
			if !yield(text) {
				return
			}
		}
	})
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	for range n {
		w.spoil(r, pick(r, scripts[pick(r, texts)]))
		if t.Failed() {
			t.Logf("seed %d", seed)
			return
		}
	}
	t.Logf("%d calls of %d scripts", w.calls, len(scripts))
}

// use has clients of a strategy do all that they can.
func (w *twin) use(strategy redislock.Strategy) {
	t := w.t
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	b, err := redisconn.NewBackend(w, &redislock.Options{Strategy: strategy})
	if err != nil {
		t.Fatal(err)
	}
	w.both("SET", "hasp:new", "0abc")
	session := func() driver.Session {
		s, _, err := b.Open(ctx, driver.SessionOptions{TTL: 20 * time.Minute, Gone: func(string, error) {}})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	one, two := session(), session()
	n := 0
	ask := func(s driver.Session, name string, units, capacity int64, value string, try bool) driver.Ticket {
		n++
		k := s.Ticket(driver.Request{Name: name, ID: fmt.Sprintf("%s-%d", strategy, n), Units: units, Capacity: capacity,
			Owner: "{}", Since: time.Now(), NoWait: try, Value: []byte(value)})
		_, _ = k.Enqueue(ctx) // compared
		return k
	}
	names := []string{"x", "y", "z"}
	if strategy == redislock.StrategyQueue {
		names = append(names, strings.Repeat("long", 100))
	}
	var held driver.Ticket
	for _, name := range names {
		held = ask(one, name, driver.Whole, driver.Whole, "", false)
		for i := range 6 {
			ask([]driver.Session{one, two}[i%2], name, driver.Whole, driver.Whole, "", i == 5)
		}
		if strategy != redislock.StrategyQueue {
			_ = held.Leave(ctx)
			continue
		}
		ask(one, name+"r", 1, driver.Whole, "v", false)
		ask(two, name+"r", 1, driver.Whole, "", false)
		ask(one, name+"r", driver.Whole, driver.Whole, "", false)
		ask(two, name+"s", 2, 3, "", false)
		ask(two, name+"s", 1, 2, "", false) // another capacity
		_ = ask(one, name+"d", driver.Whole, driver.Whole, "", false).(driver.Downgrader).Downgrade(ctx, 1)
		_ = held.Leave(ctx)
		watch, stop := context.WithTimeout(ctx, 100*time.Millisecond)
		_ = b.(driver.Watcher).Watch(watch, name, func() {})
		stop()
	}
	w.published(ctx, one, two, string(strategy))
	_, _ = one.KeepAlive(ctx)
	_, _ = two.KeepAlive(ctx)
	w.operate(ctx, b, names)
	_ = one.Close(ctx)
	_ = two.Close(ctx)
}

// operate does what operators do.
func (w *twin) operate(ctx context.Context, b driver.Backend, names []string) {
	for _, name := range names {
		list, _ := b.List(ctx, name, 0)
		_, _ = b.List(ctx, name, 1)
		if e, ok := b.(driver.Evicter); ok && len(list) > 0 {
			_ = e.Evict(ctx, name, list[0].ID, "a note")
		}
		if q, ok := b.(driver.Quarantiner); ok {
			_, _ = q.Quarantine(ctx, name)
		}
	}
}

// published publishes and adopts, where that can be done.
func (w *twin) published(ctx context.Context, one, two driver.Session, strategy string) {
	request := func(id string) driver.Request {
		return driver.Request{Name: "p", ID: id, Units: driver.Whole, Capacity: driver.Whole, Owner: "{}", Since: time.Now()}
	}
	k := one.Ticket(request(strategy + "-p1"))
	v, err := k.Enqueue(ctx)
	if err != nil || !v.Held {
		w.t.Errorf("%s: %v, %v", strategy, v, err)
	}
	if p, ok := k.(driver.Publisher); ok {
		_, _ = p.Publish(ctx, []byte("first")), p.Publish(ctx, []byte("second"))
	}
	if a, ok := two.Ticket(request(strategy + "-p2")).(driver.Adopter); ok {
		if v, err := a.Adopt(ctx, strategy+"-p1", v.Token); err != nil || !v.Held {
			w.t.Errorf("%s: adopted: %v, %v", strategy, v, err)
		}
	}
}

// strange are arguments that no client sends.
var strange = []string{"", "0", "-1", "1", "7", "1.5", "abc", "a b", "9007199254740991", "9007199254740993", "-", "w", "off", "blind", "try", "ask", "2147483647 2147483647 s 1 {}"}

// spoil makes a call with another argument, at another time, on another past.
func (w *twin) spoil(r *rand.Rand, s sample) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.IntN(200) == 0 {
		w.at(w.now + int64(r.IntN(2_000_000_000)))
	} else {
		w.at(w.now + int64(r.IntN(500_000)))
	}
	c := redisconn.Call{Keys: slices.Clone(s.call.Keys), Args: slices.Clone(s.call.Args)}
	if len(c.Keys) == 0 { // redisson's, which asks whether it may publish
		w.compare(context.Background(), s.script, c)
		return
	}
	key := pick(r, c.Keys)
	switch r.IntN(14) {
	case 0:
		w.both("DEL", key)
		w.both("SET", key, pick(r, strange))
	case 1:
		w.both("DEL", key)
		w.both("HSET", key, pick(r, []string{"hasp2", "one", "told", "x", "till"}), pick(r, strange))
	case 2:
		w.both("DEL", key)
		w.both("ZADD", key, "1", "session id")
	case 3:
		w.both("DEL", key)
		w.both("RPUSH", key, "x")
	case 4, 5:
		w.both("DEL", key)
	case 6:
		// Not a hash of Redisson's: which field is the first one depends on how Redis stores it.
		if v := w.execution().find(key); v != nil && v.kind == hashKind && strings.HasPrefix(key, "hasp:") {
			w.both("HSET", key, pick(r, []string{"hasp2", "one", "till", "w:1"}), pick(r, strange))
		}
	}
	for range r.IntN(3) {
		if len(c.Args) > 0 {
			at := r.IntN(len(c.Args))
			c.Args[at] = pick(r, strange)
		}
	}
	switch r.IntN(20) {
	case 0:
		c.Args = c.Args[:r.IntN(len(c.Args)+1)]
	case 1:
		c.Args = append(c.Args, pick(r, strange))
	}
	w.compare(context.Background(), s.script, c)
}

// TestConversions compares how Lua's values become answers, and arguments of commands.
func TestConversions(t *testing.T) {
	w := newTwin(t)
	for _, text := range []string{
		"return 1.9", "return -1.9", "return 9007199254740991", "return true", "return false", "return nil", "return",
		"return {1, 2.5, 'x', true, false, 3}", "return {1, nil, 3}", "return {}", "return {{1}, {{2, 'a'}}}", "return {ok = 'fine'}", "return {err = 'BAD x'}",
		"return redis.error_reply('CODE text')", "return redis.status_reply('fine')", "return {a = 1}",
		"redis.call('SET', KEYS[1], 12) return redis.call('GET', KEYS[1])", "redis.call('SET', KEYS[1], 1798156812000001) return redis.call('GET', KEYS[1])",
		"redis.call('SET', KEYS[1], 2 ^ 53) return redis.call('GET', KEYS[1])", "redis.call('SET', KEYS[1], 1.5) return redis.call('GET', KEYS[1])",
		"return redis.call('SET', KEYS[1], {})", "return redis.call('SET', KEYS[1])", "return redis.call('NOSUCH')", "return redis.call()",
		"local r = redis.pcall('SET', KEYS[1]) return type(r.err)", "local r = redis.pcall('HGET', 'model:info:server', 'x') return string.sub(r.err, 1, 9)",
		"return redis.call('HGET', 'model:info:server', 'x')", "return redis.call('HMGET', KEYS[1], 'a', 'b')", "return redis.call('GET', KEYS[1])", "return redis.call('PTTL', KEYS[1])",
		"return {type(redis.call('GET', KEYS[1])), type(redis.call('SET', KEYS[1], 'x').ok)}", "return tonumber('0x10') or 'no'", "return tonumber(' 12 ') or 'no'", "return tonumber('1e3') or 'no'",
		"return tonumber('') or 'no'", "return tonumber('12a') or 'no'", "return string.format('%.0f', 1798156812000001)", "return string.format('%.0f', 0.5)", "return math.floor(-1.5)", "return math.ceil(1.2)",
		"return {string.match('a 12 b', '^(%S+) (%d+) ?(%d*)')}", "return {string.find('a.b', '.', 1, true)}", "return {string.find('abc', '(b)(c)')}", "return {string.match('x {a} y', '{(.*)}')}",
		"return {string.match('12 12 13', '^(%d+) %1 ')}", "return {string.match('f00', '^[^,-]+')}", "return {string.match('key', 'e-y')}", "local t = {} for x in string.gmatch('a,b,,c', '[^,]+') do t[#t + 1] = x end return t",
		"local t = {} for x in string.gmatch('k:1\\r\\nk:2\\r\\n', 'k:[^\\r]*') do t[#t + 1] = x end return t", "return {'' < 'a', 'a' < 'B', 'Z' < 'a'}", "return #redis.sha1hex('x')", "return redis.sha1hex('')",
		"return {unpack({1, 2, 3}, 2)}", "return 'a' .. 12", "return '10' + 5", "return 10 == '10'", "return {table.remove(ARGV), #ARGV}", "error('x')", "local a a.b = 1", "return 1 < 'x'",
	} {
		w.mu.Lock()
		w.both("DEL", "k")
		w.compare(t.Context(), redisconn.NewScript(func() string { return text }), redisconn.Call{Keys: []string{"k"}, Args: []string{"1", "2"}})
		w.mu.Unlock()
	}
}
