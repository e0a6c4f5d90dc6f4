//go:build unix

package etcdfence_test

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hasplock/hasp/driver"
	_ "github.com/hasplock/hasp/etcdlock"
	"github.com/hasplock/hasp/etcdlock/etcdfence"
	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/fencetest"
)

func TestMain(m *testing.M) { fencetest.Main(m, open) }

// resource has the cell of NAME at PREFIX/cell/NAME, and the fence beside it.
type resource struct {
	client *clientv3.Client
	prefix string
}

// target is an address, a space, and a prefix for the keys.
func target(addr string) string { return addr + " " + rand.Text() }

var (
	clients sync.Map // address -> *clientv3.Client, for as long as the process
	writers fencetest.Writers[*etcdfence.Writer]
)

func client(addr string) (*clientv3.Client, error) {
	if c, ok := clients.Load(addr); ok {
		return c.(*clientv3.Client), nil
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}})
	if err != nil {
		return nil, err
	}
	all, _ := clients.LoadOrStore(addr, c)
	return all.(*clientv3.Client), nil
}

func open(_ context.Context, target string) (fencetest.Resource, error) {
	addr, prefix, _ := strings.Cut(target, " ")
	c, err := client(addr)
	return &resource{c, prefix}, err
}

func (r *resource) cell(name string) string {
	encoded, _ := driver.EncodeName(name, 600)
	return r.prefix + "/cell/" + encoded
}

func (r *resource) with(ctx context.Context, name string, token uint64) (*etcdfence.Writer, error) {
	return etcdfence.With(ctx, r.client, fencing.GrantOf(name, token), &etcdfence.Options{Prefix: r.prefix + "/fence/"})
}

func (r *resource) Advance(ctx context.Context, name string, token uint64) error {
	_, err := r.with(ctx, name, token)
	return err
}

func (r *resource) Write(ctx context.Context, name string, token uint64, value string) error {
	w, err := writers.Get(r.prefix, name, token, func() (*etcdfence.Writer, error) { return r.with(ctx, name, token) })
	if err != nil {
		return err
	}
	_, err = w.Do(ctx, clientv3.OpPut(r.cell(name), value))
	return err
}

func (r *resource) Overwrite(ctx context.Context, name, value string) error {
	_, err := r.client.Put(ctx, r.cell(name), value)
	return err
}

func (r *resource) Read(ctx context.Context, name string) (string, error) {
	got, err := r.client.Get(ctx, r.cell(name))
	if err != nil || len(got.Kvs) == 0 {
		return "", err
	}
	return string(got.Kvs[0].Value), nil
}

func TestRule(t *testing.T) { fencetest.Rule(t, open, target(backends.SharedEtcd(t).Addr)) }

func TestPaused(t *testing.T) {
	server := backends.SharedEtcd(t)
	fencetest.Paused(t, open, "etcd://"+server.Addr, target(server.Addr))
}

func TestLoad(t *testing.T) {
	addr := backends.SharedEtcd(t).Addr
	fencetest.Load(t, open, target(addr), target(addr))
}

func newWriter(t *testing.T) (*etcdfence.Writer, *clientv3.Client, string) {
	t.Helper()
	c, err := client(backends.SharedEtcd(t).Addr)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.ToLower(rand.Text())
	w, err := etcdfence.With(t.Context(), c, fencing.GrantOf(name, 7), nil)
	if err != nil {
		t.Fatal(err)
	}
	return w, c, name
}

// The user's own conditions and both branches, inside the fenced transaction.
func TestTxn(t *testing.T) {
	w, c, name := newWriter(t)
	put := func(value string) []clientv3.Op { return []clientv3.Op{clientv3.OpPut(name, value)} }
	absent := []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(name), "=", 0)}
	for _, want := range []bool{true, false} {
		r, err := w.Txn(t.Context(), absent, put("then"), []clientv3.Op{clientv3.OpGet(name)})
		if err != nil || r.Succeeded != want {
			t.Fatalf("succeeded: %v, %v; want %t", r, err, want)
		}
		if r.Header == nil || r.Header.Revision == 0 {
			t.Error("no revision in the answer")
		}
		if !want && string(r.Responses[0].GetResponseRange().Kvs[0].Value) != "then" {
			t.Errorf("the other branch answered %v", r.Responses)
		}
	}
	if _, err := etcdfence.With(t.Context(), c, fencing.GrantOf(name, 8), nil); err != nil {
		t.Fatal(err)
	}
	if r, err := w.Txn(t.Context(), absent, nil, put("late")); !errors.Is(err, fencing.ErrStale) || r != nil {
		t.Errorf("a stale transaction, other branch: %v, %v", r, err)
	}
	if got, err := c.Get(t.Context(), name); err != nil || string(got.Kvs[0].Value) != "then" {
		t.Errorf("the key is %v, %v", got, err)
	}
}

// A fence that was removed is made again, and one that holds something else is no fence.
func TestFenceTampered(t *testing.T) {
	w, c, name := newWriter(t)
	if _, err := c.Delete(t.Context(), w.Key()); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Do(t.Context(), clientv3.OpPut(name, "a")); err != nil {
		t.Errorf("after the fence was removed: %v", err)
	}
	if _, err := etcdfence.With(t.Context(), c, fencing.GrantOf(name, 6), nil); !errors.Is(err, fencing.ErrStale) {
		t.Errorf("it was not made again: %v", err)
	}
	for _, foreign := range []string{"x", "", "9", "-0000000000000000009"} {
		if _, err := c.Put(t.Context(), w.Key(), foreign); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Do(t.Context(), clientv3.OpPut(name, "b")); err == nil {
			t.Errorf("%q is taken for a fence", foreign)
		}
	}
}

// counting counts round trips; nothing but transactions is used.
type counting struct {
	clientv3.KV
	calls int
}

func (c *counting) Txn(ctx context.Context) clientv3.Txn {
	c.calls++
	return c.KV.Txn(ctx)
}

func TestCost(t *testing.T) {
	_, client, name := newWriter(t)
	c := &counting{KV: client}
	w, err := etcdfence.With(t.Context(), c, fencing.GrantOf(name, 8), nil)
	if err != nil || c.calls != 1 {
		t.Fatalf("a With of a known name took %d round trips, %v", c.calls, err)
	}
	before, err := client.Get(t.Context(), w.Key())
	if err != nil {
		t.Fatal(err)
	}
	c.calls = 0
	if _, err := w.Do(t.Context(), clientv3.OpPut(name, "v")); err != nil || c.calls != 1 {
		t.Errorf("a write took %d round trips, %v", c.calls, err)
	}
	after, err := client.Get(t.Context(), w.Key())
	if err != nil || after.Kvs[0].ModRevision != before.Kvs[0].ModRevision {
		t.Errorf("a write has written the fence as well: %v", err)
	}
}

func BenchmarkWrite(b *testing.B) {
	c, err := client(backends.SharedEtcd(b).Addr)
	if err != nil {
		b.Fatal(err)
	}
	ctx := b.Context()
	b.Run("unfenced", func(b *testing.B) {
		for b.Loop() {
			if _, err := c.Put(ctx, "bench", "v"); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("fenced", func(b *testing.B) {
		w, err := etcdfence.With(ctx, c, fencing.GrantOf("bench", 7), nil)
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if _, err := w.Do(ctx, clientv3.OpPut("bench", "v")); err != nil {
				b.Fatal(err)
			}
		}
	})
}
