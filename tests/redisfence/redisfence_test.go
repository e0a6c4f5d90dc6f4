//go:build unix

package redisfence_test

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/redis/rueidis"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/fencetest"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
	_ "github.com/hasplock/hasp/redislock"
	"github.com/hasplock/hasp/redislock/redisfence"
)

func TestMain(m *testing.M) { fencetest.Main(m, open) }

func connect(t testing.TB, addrs ...string) rueidis.Client {
	t.Helper()
	c, err := testkit.Again(testkit.Context(t), func() (rueidis.Client, error) {
		return rueidis.NewClient(rueidis.ClientOption{InitAddress: addrs, DisableCache: true})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// resource is a hash tag's keys: {prefix/NAME}:cell, and the fence beside it.
type resource struct {
	client rueidis.Client
	prefix string
}

// target is addresses, a space, and a prefix for the keys.
func target(addrs ...string) string { return strings.Join(addrs, ",") + " " + rand.Text() }

var (
	clients sync.Map // addresses -> rueidis.Client, for as long as the process
	writers fencetest.Writers[*redisfence.Writer]
)

func open(_ context.Context, target string) (fencetest.Resource, error) {
	addrs, prefix, _ := strings.Cut(target, " ")
	client, ok := clients.Load(addrs)
	if !ok {
		c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: strings.Split(addrs, ","), DisableCache: true})
		if err != nil {
			return nil, err
		}
		client, _ = clients.LoadOrStore(addrs, c)
	}
	return &resource{client.(rueidis.Client), prefix}, nil
}

func (r *resource) keys(name string) (cell, fence string) {
	encoded, _ := driver.EncodeName(name, 600)
	tag := "{" + r.prefix + "/" + encoded + "}"
	return tag + ":cell", tag + ":fence"
}

func (r *resource) with(ctx context.Context, name string, token uint64) (*redisfence.Writer, error) {
	_, fence := r.keys(name)
	return redisfence.With(ctx, redisfence.Rueidis(r.client), fencing.GrantOf(name, token), &redisfence.Options{Fence: fence})
}

func (r *resource) Advance(ctx context.Context, name string, token uint64) error {
	_, err := r.with(ctx, name, token)
	return err
}

func (r *resource) Write(ctx context.Context, name string, token uint64, value string) error {
	w, err := writers.Get(r.prefix, name, token, func() (*redisfence.Writer, error) { return r.with(ctx, name, token) })
	if err != nil {
		return err
	}
	cell, _ := r.keys(name)
	_, err = w.Do(ctx, redisfence.Command{"SET", cell, value})
	return err
}

func (r *resource) Overwrite(ctx context.Context, name, value string) error {
	cell, _ := r.keys(name)
	return r.client.Do(ctx, r.client.B().Set().Key(cell).Value(value).Build()).Error()
}

func (r *resource) Read(ctx context.Context, name string) (string, error) {
	cell, _ := r.keys(name)
	value, err := r.client.Do(ctx, r.client.B().Get().Key(cell).Build()).ToString()
	if rueidis.IsRedisNil(err) {
		return "", nil
	}
	return value, err
}

func TestRule(t *testing.T) {
	fencetest.Rule(t, open, target(backends.SharedRedis(t).Addr))
}

func TestPaused(t *testing.T) {
	server := backends.SharedRedis(t)
	fencetest.Paused(t, open, server.URL(), target(server.Addr))
}

func TestLoad(t *testing.T) {
	addr := backends.SharedRedis(t).Addr
	fencetest.Load(t, open, target(addr), target(addr))
}

func TestCluster(t *testing.T) {
	testtier.Long(t)
	addrs := backends.SharedRedisCluster(t).Addrs()
	fencetest.Rule(t, open, target(addrs...))
	// A key of another slot is refused before anything is sent.
	w, err := redisfence.With(t.Context(), redisfence.Rueidis(connect(t, addrs...)), fencing.GrantOf("orders/42", 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Do(t.Context(), redisfence.Command{"SET", "elsewhere", "x"}); !errors.Is(err, fencing.ErrInvalid) {
		t.Errorf("a key of another slot: %v", err)
	}
	if _, err := w.Do(t.Context(), redisfence.Command{"SET", "{orders%2f42}:state", "x"}); err != nil {
		t.Errorf("a key of the fence's slot: %v", err)
	}
}

func newWriter(t *testing.T) (*redisfence.Writer, rueidis.Client, string) {
	t.Helper()
	client, name := connect(t, backends.SharedRedis(t).Addr), strings.ToLower(rand.Text())
	w, err := redisfence.With(t.Context(), redisfence.Rueidis(client), fencing.GrantOf(name, 7), nil)
	if err != nil {
		t.Fatal(err)
	}
	return w, client, name
}

func TestDo(t *testing.T) {
	w, client, name := newWriter(t)
	if want := "hasp:fence:{" + name + "}"; w.Fence() != want {
		t.Errorf("the fence is %s, want %s", w.Fence(), want)
	}
	a, b := name+":a", name+":b"
	got, err := w.Do(t.Context(),
		redisfence.Command{"SET", a, "with spaces\x00 and\nlines"}, redisfence.Command{"GET", a},
		redisfence.Command{"GET", name + ":none"}, redisfence.Command{"RPUSH", b, "x", "y"}, redisfence.Command{"LRANGE", b, "0", "-1"})
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 5 || got[0] != "OK" || got[1] != "with spaces\x00 and\nlines" || got[2] != nil || got[3] != int64(2) ||
		!slices.Equal(got[4].([]any), []any{"x", "y"}) {
		t.Errorf("results: %q", got)
	}
	if got, err := w.Do(t.Context()); err != nil || len(got) != 0 {
		t.Errorf("no commands: %q, %v", got, err)
	}
	// The one that fails says which it is; what was before it stays.
	_, err = w.Do(t.Context(), redisfence.Command{"SET", a, "kept"}, redisfence.Command{"INCR", b}, redisfence.Command{"SET", a, "never"})
	if err == nil || !strings.Contains(err.Error(), "WRONGTYPE") || !strings.Contains(err.Error(), "command 2") {
		t.Errorf("a wrong type: %v", err)
	}
	if kept, err := client.Do(t.Context(), client.B().Get().Key(a).Build()).ToString(); kept != "kept" {
		t.Errorf("after a failed command: %q, %v", kept, err)
	}
	if _, err := w.Do(t.Context(), redisfence.Command{"PING"}); !errors.Is(err, fencing.ErrInvalid) {
		t.Errorf("a command without a key: %v", err)
	}
}

func TestEval(t *testing.T) {
	w, client, name := newWriter(t)
	for _, c := range []struct {
		script string
		want   any
	}{
		{`return redis.call('SET', KEYS[1], ARGV[1]) and #KEYS .. #ARGV`, "12"}, // sees its own only
		{`return redis.call('GET', KEYS[1]) -- a comment`, "value"},
		{`return nil`, nil},
		{`local x = 1`, nil},
		{`return false`, nil},
		{`return 3.9`, int64(3)}, // as everywhere in Redis
		{`return {ok = 'FINE'}`, "FINE"},
	} {
		if got, err := w.Eval(t.Context(), c.script, []string{name}, []string{"value", "b"}); err != nil || got != c.want {
			t.Errorf("%s: %#v, %v; want %#v", c.script, got, err, c.want)
		}
	}
	for script, want := range map[string]string{
		`return redis.error_reply('MINE said no')`: "MINE said no",
		`error('raised')`:                          "raised",
		`return (`:                                 "compiling",
	} {
		if _, err := w.Eval(t.Context(), script, []string{name}, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %s", script, err, want)
		}
	}
	// A server that has forgotten the script is told it again.
	if err := client.Do(t.Context(), client.B().ScriptFlush().Build()).Error(); err != nil {
		t.Fatal(err)
	}
	if got, err := w.Eval(t.Context(), `return redis.call('GET', KEYS[1])`, []string{name}, nil); err != nil || got != "value" {
		t.Errorf("after SCRIPT FLUSH: %q, %v", got, err)
	}
	// And a stale one does not run.
	if _, err := redisfence.With(t.Context(), redisfence.Rueidis(client), fencing.GrantOf(name, 8), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Eval(t.Context(), `return redis.call('SET', KEYS[1], 'late')`, []string{name}, nil); !errors.Is(err, fencing.ErrStale) {
		t.Errorf("a stale script: %v", err)
	}
}

// A key that holds something else is not taken for a fence that has seen nothing.
func TestForeignFence(t *testing.T) {
	w, client, name := newWriter(t)
	for _, foreign := range [][]string{{"SET", w.Fence(), "abc"}, {"SET", w.Fence(), ""}, {"SET", w.Fence(), "-1"}, {"SET", w.Fence(), "1e3"}, {"RPUSH", w.Fence(), "1"}} {
		for _, cmd := range [][]string{{"DEL", w.Fence()}, foreign} {
			if err := client.Do(t.Context(), client.B().Arbitrary(cmd...).Build()).Error(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := w.Do(t.Context(), redisfence.Command{"SET", name, "x"}); err == nil {
			t.Errorf("%q is taken for a fence", foreign)
		}
	}
	if n, err := client.Do(t.Context(), client.B().Exists().Key(name).Build()).AsInt64(); n != 0 || err != nil {
		t.Errorf("something was written: %d, %v", n, err)
	}
}

// counting counts round trips.
type counting struct {
	redisfence.Client
	calls int
}

func (c *counting) Eval(ctx context.Context, script string, keys, args []string) (any, error) {
	c.calls++
	return c.Client.Eval(ctx, script, keys, args)
}

// A fenced write is one script, however many commands it has; and at the server one command
// more than those.
func TestCost(t *testing.T) {
	server := backends.StartRedis(t, backends.RedisOptions{})
	c := &counting{Client: redisfence.Rueidis(connect(t, server.Addr))}
	w, err := redisfence.With(t.Context(), c, fencing.GrantOf("n", 7), nil)
	if err != nil {
		t.Fatal(err)
	}
	set := redisfence.Command{"SET", "k", "v"}
	if _, err := w.Do(t.Context(), set); err != nil { // tells the server the script
		t.Fatal(err)
	}
	if _, err := server.Do("CONFIG", "RESETSTAT"); err != nil {
		t.Fatal(err)
	}
	c.calls = 0
	if _, err := w.Do(t.Context(), set, set, set); err != nil {
		t.Fatal(err)
	}
	stats, err := server.Do("INFO", "commandstats")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"cmdstat_evalsha:calls=1,", "cmdstat_get:calls=1,", "cmdstat_set:calls=3,"} {
		if !strings.Contains(stats, want) {
			t.Errorf("no %s in\n%s", want, stats)
		}
	}
	if c.calls != 1 {
		t.Errorf("%d round trips", c.calls)
	}
}

func BenchmarkWrite(b *testing.B) {
	client := connect(b, backends.SharedRedis(b).Addr)
	ctx := b.Context()
	b.Run("unfenced", func(b *testing.B) {
		for b.Loop() {
			if err := client.Do(ctx, client.B().Set().Key("bench").Value("v").Build()).Error(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("fenced", func(b *testing.B) {
		w, err := redisfence.With(ctx, redisfence.Rueidis(client), fencing.GrantOf("bench", 7), nil)
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if _, err := w.Do(ctx, redisfence.Command{"SET", "bench", "v"}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
