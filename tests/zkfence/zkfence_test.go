//go:build unix

package zkfence_test

import (
	"context"
	"crypto/rand"
	"errors"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/fencetest"
	_ "github.com/hasplock/hasp/zklock"
	"github.com/hasplock/hasp/zklock/zkfence"
)

func TestMain(m *testing.M) { fencetest.Main(m, open) }

// resource has the cell of NAME at /PREFIX-cell-NAME, and the fences under /PREFIX/fence.
type resource struct {
	conn   *zk.Conn
	prefix string
}

// target is an address, a space, and a prefix for the paths.
func target(addr string) string { return addr + " " + rand.Text() }

var (
	conns   sync.Map // address -> *zk.Conn, for as long as the process
	writers fencetest.Writers[*zkfence.Writer]
)

type quiet struct{}

func (quiet) Printf(string, ...any) {}

func connect(addr string) (*zk.Conn, error) {
	if c, ok := conns.Load(addr); ok {
		return c.(*zk.Conn), nil
	}
	// No process is stopped, and no server silent, for so long that the connection would end.
	c, _, err := zk.Connect([]string{addr}, 10*time.Minute, zk.WithLogger(quiet{}))
	if err != nil {
		return nil, err
	}
	all, _ := conns.LoadOrStore(addr, c)
	return all.(*zk.Conn), nil
}

func open(_ context.Context, target string) (fencetest.Resource, error) {
	addr, prefix, _ := strings.Cut(target, " ")
	c, err := connect(addr)
	return &resource{c, prefix}, err
}

func (r *resource) cell(name string) string {
	encoded, _ := driver.EncodeName(name, 600)
	return "/" + r.prefix + "-cell-" + encoded
}

func (r *resource) with(ctx context.Context, name string, token uint64) (*zkfence.Writer, error) {
	return zkfence.With(ctx, r.conn, fencing.GrantOf(name, token), &zkfence.Options{Root: "/" + r.prefix + "/fence"})
}

func (r *resource) Advance(ctx context.Context, name string, token uint64) error {
	_, err := r.with(ctx, name, token)
	return err
}

func (r *resource) Write(ctx context.Context, name string, token uint64, value string) error {
	w, err := writers.Get(r.prefix, name, token, func() (*zkfence.Writer, error) { return r.with(ctx, name, token) })
	if err != nil {
		return err
	}
	set := &zk.SetDataRequest{Path: r.cell(name), Data: []byte(value), Version: -1}
	_, err = w.Multi(ctx, set)
	if errors.Is(err, zk.ErrNoNode) {
		_, err = w.Multi(ctx, &zk.CreateRequest{Path: r.cell(name), Data: []byte(value), Acl: zk.WorldACL(zk.PermAll)})
	}
	return err
}

func (r *resource) Overwrite(_ context.Context, name, value string) error {
	_, err := r.conn.Set(r.cell(name), []byte(value), -1)
	if errors.Is(err, zk.ErrNoNode) {
		_, err = r.conn.Create(r.cell(name), []byte(value), 0, zk.WorldACL(zk.PermAll))
	}
	return err
}

// Read asks for the newest state, as a lock holder must.
func (r *resource) Read(_ context.Context, name string) (string, error) {
	if _, err := r.conn.Sync(r.cell(name)); err != nil {
		return "", err
	}
	data, _, err := r.conn.Get(r.cell(name))
	if errors.Is(err, zk.ErrNoNode) {
		return "", nil
	}
	return string(data), err
}

func TestRule(t *testing.T) { fencetest.Rule(t, open, target(backends.SharedZooKeeper(t).Addr)) }

func TestPaused(t *testing.T) {
	addr := backends.SharedZooKeeper(t).Addr
	fencetest.Paused(t, open, "zookeeper://"+addr+"?connect_timeout=20s", target(addr))
}

func TestLoad(t *testing.T) {
	addr := backends.SharedZooKeeper(t).Addr
	fencetest.Load(t, open, target(addr), target(addr))
}

func newWriter(t *testing.T) (*zkfence.Writer, *zk.Conn, string) {
	t.Helper()
	c, err := connect(backends.SharedZooKeeper(t).Addr)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.ToLower(rand.Text())
	w, err := zkfence.With(t.Context(), c, fencing.GrantOf(name, 7), nil)
	if err != nil {
		t.Fatal(err)
	}
	return w, c, name
}

// Operations are made together or not at all, and the error is that of the one that failed,
// also when it looks like the fence's own.
func TestMulti(t *testing.T) {
	w, c, name := newWriter(t)
	acl := zk.WorldACL(zk.PermAll)
	a, b := "/"+name+"-a", "/"+name+"-b"
	r, err := w.Multi(t.Context(), &zk.CreateRequest{Path: a, Data: []byte("1"), Acl: acl}, &zk.SetDataRequest{Path: a, Data: []byte("2"), Version: 0})
	if err != nil || len(r) != 2 || r[0].String != a || r[1].Stat == nil || r[1].Stat.Version != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	r, err = w.Multi(t.Context(), &zk.CreateRequest{Path: b, Acl: acl}, &zk.SetDataRequest{Path: a, Data: []byte("3"), Version: 0})
	if !errors.Is(err, zk.ErrBadVersion) || errors.Is(err, fencing.ErrStale) || len(r) != 2 || !errors.Is(r[1].Error, zk.ErrBadVersion) {
		t.Errorf("a version of the caller's own: %+v, %v", r, err)
	}
	if there, _, err := c.Exists(b); there || err != nil {
		t.Errorf("half of it was made: %t, %v", there, err)
	}
}

// Another writer with the same token moves the version of the fence when it sets it up anew;
// that is no reason to refuse.
func TestVersionMovesUnderTheSameToken(t *testing.T) {
	w, c, name := newWriter(t)
	for range 3 {
		if _, err := c.Set(w.Path(), []byte("7"), -1); err != nil {
			t.Fatal(err)
		}
	}
	cell := "/" + name
	if _, err := w.Multi(t.Context(), &zk.CreateRequest{Path: cell, Acl: zk.WorldACL(zk.PermAll)}); err != nil {
		t.Errorf("the same token: %v", err)
	}
	if _, err := c.Set(w.Path(), []byte("8"), -1); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Multi(t.Context(), &zk.SetDataRequest{Path: cell, Version: -1}); !errors.Is(err, fencing.ErrStale) {
		t.Errorf("a greater one: %v", err)
	}
	if _, err := c.Set(w.Path(), []byte("seven"), -1); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Multi(t.Context(), &zk.SetDataRequest{Path: cell, Version: -1}); err == nil {
		t.Error("a node that holds something else is taken for a fence")
	}
}

// A fence that was removed and made anew by a greater token refuses the earlier holder, although
// both nodes have had the same version.
func TestMadeAnew(t *testing.T) {
	w, c, name := newWriter(t)
	cell := "/" + name
	if _, err := w.Multi(t.Context(), &zk.CreateRequest{Path: cell, Acl: zk.WorldACL(zk.PermAll)}); err != nil {
		t.Fatal(err)
	}
	children, _, err := c.Children(w.Path())
	if err != nil || len(children) != 1 {
		t.Fatal(children, err)
	}
	for _, node := range []string{w.Path() + "/" + children[0], w.Path()} {
		if err := c.Delete(node, -1); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := zkfence.With(t.Context(), c, fencing.GrantOf(name, 9), &zkfence.Options{Root: path.Dir(w.Path())}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Multi(t.Context(), &zk.SetDataRequest{Path: cell, Version: -1}); !errors.Is(err, fencing.ErrStale) {
		t.Errorf("token 7 writes after 9: %v", err)
	}
}

// A fence that was made by hand, without a child, is one all the same.
func TestMadeByHand(t *testing.T) {
	w, c, name := newWriter(t)
	byHand := path.Dir(w.Path()) + "/by-hand-" + name
	if _, err := c.Create(byHand, []byte("8"), 0, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	o := &zkfence.Options{Root: path.Dir(w.Path())}
	if _, err := zkfence.With(t.Context(), c, fencing.GrantOf("by-hand-"+name, 7), o); !errors.Is(err, fencing.ErrStale) {
		t.Errorf("token 7 after 8: %v", err)
	}
	nine, err := zkfence.With(t.Context(), c, fencing.GrantOf("by-hand-"+name, 9), o)
	if err != nil || nine.Path() != byHand {
		t.Fatal(nine, err)
	}
	if _, err := nine.Multi(t.Context(), &zk.CreateRequest{Path: "/" + name, Acl: zk.WorldACL(zk.PermAll)}); err != nil {
		t.Error(err)
	}
}

func TestRoot(t *testing.T) {
	_, c, name := newWriter(t)
	for _, root := range []string{"relative", "/", "/a/", "/a//b"} {
		if _, err := zkfence.With(t.Context(), c, fencing.GrantOf(name, 8), &zkfence.Options{Root: root}); !errors.Is(err, fencing.ErrInvalid) {
			t.Errorf("root %q: %v", root, err)
		}
	}
}

func BenchmarkWrite(b *testing.B) {
	c, err := connect(backends.SharedZooKeeper(b).Addr)
	if err != nil {
		b.Fatal(err)
	}
	cell := "/bench-" + rand.Text()
	if _, err := c.Create(cell, nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
		b.Fatal(err)
	}
	set := &zk.SetDataRequest{Path: cell, Data: []byte("v"), Version: -1}
	b.Run("unfenced", func(b *testing.B) {
		for b.Loop() {
			if _, err := c.Multi(set); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("fenced", func(b *testing.B) {
		w, err := zkfence.With(b.Context(), c, fencing.GrantOf("bench", 7), nil)
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if _, err := w.Multi(b.Context(), set); err != nil {
				b.Fatal(err)
			}
		}
	})
}
