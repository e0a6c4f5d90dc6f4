package simulation

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

// twin is a connection to a real server and to one of the simulation, which get the same requests
// and must give the same answers, and have the same data. The clock that scripts see is a key of
// both, as is the answer to INFO.
type twin struct {
	redisconn.Conn
	t    testing.TB
	node redisconn.Node

	mu      sync.Mutex
	model   *server
	now     int64
	edited  map[string]*redisconn.Script
	samples []sample
	calls   int
}

// sample is a call that a client has made.
type sample struct {
	script *redisconn.Script
	call   redisconn.Call
}

func newTwin(t testing.TB) *twin {
	real := backends.StartRedis(t, backends.RedisOptions{})
	conn, err := redisconn.Open(t.Context(), redisconn.Config{Label: "redis://" + real.Addr, Addrs: []string{real.Addr}, ConnectTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	w := newWorld(config{servers: 1}, newInterpreter(), nil)
	w.epoch = 0
	tw := &twin{Conn: conn, t: t, model: w.servers[0], now: time.Now().UnixMicro(), edited: map[string]*redisconn.Script{}}
	_ = conn.Each(t.Context(), func(n redisconn.Node) error { tw.node = n; return nil })
	tw.both("FLUSHALL")
	for section, text := range map[string]string{
		"replication": "role:master\r\nmaster_replid:00ff\r\nsecond_repl_offset:-1\r\n", "server": "run_id:0abc\r\nuptime_in_seconds:100\r\n",
		"stats": "evicted_keys:0\r\n", "commandstats": "cmdstat_get:calls=1,usec=1\r\n",
	} {
		tw.both("SET", "model:info:"+section, text)
	}
	return tw
}

// both sends a command that sets a past to both.
func (w *twin) both(args ...string) {
	w.t.Helper()
	if r := w.node.Do(context.Background(), args...); r.Err != nil {
		w.t.Fatalf("%v: %v", args, r.Err)
	}
	switch e := w.execution(); args[0] {
	case "FLUSHALL":
		clear(e.db())
	case "RPUSH":
		e.db()[args[1]] = &value{kind: "list"}
	default:
		if f, failed := e.do(args).(failure); failed {
			w.t.Fatalf("%v: %v", args, f)
		}
	}
}

func (w *twin) execution() *execution {
	return &execution{server: w.model, now: time.Now().UnixMicro()}
}

// edit has a script read the clock and INFO from keys.
func (w *twin) edit(s *redisconn.Script) *redisconn.Script {
	text := s.Text()
	if w.edited[text] == nil {
		changed := strings.NewReplacer(
			"redis.call('TIME')", "redis.call('HMGET', 'model:now', 's', 'us')",
			"redis.pcall('INFO', section)", "redis.pcall('GET', 'model:info:' .. section)",
		).Replace(text)
		if strings.Contains(changed, "'TIME'") || strings.Contains(changed, "'INFO'") {
			w.t.Fatalf("a script asks for the time or for INFO in a way that the twin does not know:\n%s", text)
		}
		w.edited[text] = redisconn.NewScript(func() string { return changed })
	}
	return w.edited[text]
}

// at sets the clock that scripts see.
func (w *twin) at(now int64) {
	w.now = now
	w.both("HSET", "model:now", "s", strconv.FormatInt(now/1e6, 10), "us", strconv.FormatInt(now%1e6, 10))
}

func (w *twin) Eval(ctx context.Context, s *redisconn.Script, c redisconn.Call, _ int) redisconn.Reply {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.samples = append(w.samples, sample{s, c})
	w.at(max(w.now+1, time.Now().UnixMicro()))
	return w.compare(ctx, s, c)
}

func (w *twin) EvalAll(ctx context.Context, s *redisconn.Script, calls []redisconn.Call, replicas int) (all []redisconn.Reply) {
	for _, c := range calls {
		all = append(all, w.Eval(ctx, s, c, replicas))
	}
	return all
}

// Subscribe has the simulated server know of the listener, whom the real one has.
func (w *twin) Subscribe(ctx context.Context, channel string, up func(), message func(string)) error {
	sub := &subscription{client: &client{}, server: w.model, channel: channel}
	defer w.model.world.unsubscribe(sub)
	return w.Conn.Subscribe(ctx, channel, func() {
		w.mu.Lock()
		w.model.world.subs = append(w.model.world.subs, sub)
		w.mu.Unlock()
		up()
	}, message)
}

// compare runs a script at both.
func (w *twin) compare(ctx context.Context, s *redisconn.Script, c redisconn.Call) redisconn.Reply {
	w.t.Helper()
	w.calls++
	ctx = context.WithoutCancel(ctx) // what one of them has done, the other must do
	edited := w.edit(s)
	before := w.modelData()
	e := w.execution()
	want := w.Conn.Eval(ctx, edited, c, 0)
	got := w.model.world.in.run(e, edited.Text(), c.Keys, c.Args)
	if !sameReply(got, want) {
		w.t.Errorf("%q %q on\n%s\nis answered %v (%v), by Redis %v (%v)\n%s", c.Keys, c.Args, before.of(c.Keys), got.Value, got.Err, want.Value, want.Err, s.Text()[max(0, len(s.Text())-300):])
	}
	if got, want := w.lasting(w.modelData()), w.lasting(w.realData(ctx)); !sameData(got, want) {
		w.t.Errorf("%q %q on\n%s\nleaves\n%s\nat Redis\n%s\n%s", c.Keys, c.Args, before.of(c.Keys), got.of(c.Keys), want.of(c.Keys), s.Text()[max(0, len(s.Text())-300):])
		w.t.FailNow()
	}
	return want
}

// lasting leaves out, and deletes from both, what expires soon: at one before the other.
func (w *twin) lasting(c contents) contents {
	return slices.DeleteFunc(c, func(k keyContents) bool {
		soon := 0 <= k.left && k.left < 5000
		if soon {
			w.both("DEL", k.key)
		}
		return soon
	})
}

// sameReply compares answers. A time that a key has left is counted by two clocks. Of errors of Lua
// only that there is one counts: their texts are of the interpreters.
func sameReply(got, want redisconn.Reply) bool {
	if got.Err != nil || want.Err != nil {
		a, b := redisconn.Answered(got.Err), redisconn.Answered(want.Err)
		return got.Err != nil && want.Err != nil && (a == b || strings.HasPrefix(b, "user_script") || strings.Contains(want.Err.Error(), "user_script"))
	}
	return sameValue(got.Value, want.Value)
}

func sameValue(got, want any) bool {
	a, array := got.([]any)
	b, array2 := want.([]any)
	if array && array2 && len(a) == len(b) {
		for i := range a {
			if !sameValue(a[i], b[i]) {
				return sameFields(a, b)
			}
		}
		return true
	}
	x, number := got.(int64)
	y, number2 := want.(int64)
	if number && number2 && x != y {
		return x > 0 && y > 0 && max(x, y) < 1e10 && max(x, y)-min(x, y) < 5000
	}
	return reflect.DeepEqual(got, want)
}

// sameFields compares answers to HGETALL, whose order is the server's.
func sameFields(a, b []any) bool {
	fields := func(all []any) map[string]string {
		hash := map[string]string{}
		for i := 0; i+1 < len(all); i += 2 {
			name, ok := all[i].(string)
			text, ok2 := all[i+1].(string)
			if !ok || !ok2 {
				return nil
			}
			hash[name] = text
		}
		return hash
	}
	x, y := fields(a), fields(b)
	return x != nil && y != nil && maps.Equal(x, y)
}

// contents are the keys of a server, each with its type, its contents, and milliseconds.
type contents []keyContents

type keyContents struct {
	key, kind, text string
	left            int64
}

// of tells those of some keys.
func (c contents) of(keys []string) string {
	var b strings.Builder
	for _, k := range c {
		if slices.Contains(keys, k.key) {
			fmt.Fprintf(&b, "  %q %s, %d ms left: %q\n", k.key, k.kind, k.left, k.text)
		}
	}
	return b.String()
}

func sameData(got, want contents) bool {
	return slices.EqualFunc(got, want, func(a, b keyContents) bool {
		left := a.left == b.left || a.left > 0 && b.left > 0 && max(a.left, b.left)-min(a.left, b.left) < 5000
		return a.key == b.key && a.kind == b.kind && a.text == b.text && left
	})
}

func (w *twin) modelData() (all contents) {
	for key, v := range w.execution().db() {
		var text string
		switch v.kind {
		case stringKind:
			text = v.text
		case hashKind:
			text = pairs(v.hash)
		case zsetKind:
			for _, member := range v.ordered() {
				text += fmt.Sprintf("%s=%.17g ", member, v.scores[member])
			}
		}
		left := int64(-1)
		if v.expires != 0 {
			left = v.expires - time.Now().UnixMilli()
		}
		all = append(all, keyContents{key, string(v.kind), text, left})
	}
	return all.sorted()
}

func pairs(hash map[string]string) string {
	var all []string
	for name, text := range hash {
		all = append(all, fmt.Sprintf("%q=%q", name, text))
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func (c contents) sorted() contents {
	slices.SortFunc(c, func(a, b keyContents) int { return strings.Compare(a.key, b.key) })
	return c
}

// dump reads all keys.
var dump = redisconn.NewScript(func() string {
	return `local all = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind, has = redis.call('TYPE', key).ok, {}
  if kind == 'string' then has = { redis.call('GET', key) }
  elseif kind == 'hash' then has = redis.call('HGETALL', key)
  elseif kind == 'zset' then has = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end
  all[#all + 1] = { key, kind, has, redis.call('PTTL', key) }
end
return all`
})

func (w *twin) realData(ctx context.Context) (all contents) {
	r := w.Conn.Eval(ctx, dump, redisconn.Call{}, 0)
	if r.Err != nil {
		w.t.Fatal(r.Err)
	}
	for _, x := range r.Value.([]any) {
		parts := x.([]any)
		k := keyContents{key: parts[0].(string), kind: parts[1].(string), left: parts[3].(int64)}
		has := parts[2].([]any)
		switch k.kind {
		case "string":
			k.text = has[0].(string)
		case "hash":
			hash := map[string]string{}
			for i := 0; i < len(has); i += 2 {
				hash[has[i].(string)] = has[i+1].(string)
			}
			k.text = pairs(hash)
		case "zset":
			for i := 0; i < len(has); i += 2 {
				score, _ := strconv.ParseFloat(has[i+1].(string), 64)
				k.text += fmt.Sprintf("%s=%.17g ", has[i], score)
			}
		}
		all = append(all, k)
	}
	return all.sorted()
}
