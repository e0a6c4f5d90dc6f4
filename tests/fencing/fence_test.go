//go:build unix

package fencing_test

import (
	"context"
	"errors"
	"net"
	"net/rpc"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/fencetest"
	_ "github.com/hasplock/hasp/redislock"
)

func TestMain(m *testing.M) { fencetest.Main(m, open) }

// open reaches the resource of this process, or with an address one that another serves.
func open(_ context.Context, target string) (fencetest.Resource, error) {
	host, _, err := net.SplitHostPort(target)
	if err != nil || host == "" {
		cells, _ := memories.LoadOrStore(target, &memory{cells: map[string]string{}})
		return cells.(*memory), nil
	}
	c, err := rpc.Dial("tcp", target)
	if err != nil {
		return nil, err
	}
	return &remote{c}, nil
}

var memories sync.Map // target -> *memory

// memory is a resource as a program has one: some data, and a fence for each lock.
type memory struct {
	fences  fencing.Fences
	writers fencetest.Writers[*fencing.Writer]
	mu      sync.Mutex
	cells   map[string]string
}

func (m *memory) Advance(ctx context.Context, name string, token uint64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	_, err := m.fences.Of(name).With(fencing.GrantOf(name, token))
	return err
}

func (m *memory) Write(ctx context.Context, name string, token uint64, value string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	fence := m.fences.Of(name)
	w, err := m.writers.Get("", name, token, func() (*fencing.Writer, error) { return fence.With(fencing.GrantOf(name, token)) })
	if err != nil {
		return err
	}
	return w.Do(func() error { return m.Overwrite(ctx, name, value) })
}

func (m *memory) Overwrite(_ context.Context, name, value string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cells[name] = value
	return nil
}

func (m *memory) Read(_ context.Context, name string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cells[name], nil
}

// Served offers a memory to other processes.
type Served struct{ memory *memory }

type Call struct {
	Do, Name, Value string
	Token           uint64
}

type Answer struct {
	Value, Err string
	Stale      *fencing.StaleError
}

func (s *Served) Call(c Call, a *Answer) error {
	ctx := context.Background()
	var err error
	switch c.Do {
	case "advance":
		err = s.memory.Advance(ctx, c.Name, c.Token)
	case "write":
		err = s.memory.Write(ctx, c.Name, c.Token, c.Value)
	case "overwrite":
		err = s.memory.Overwrite(ctx, c.Name, c.Value)
	case "read":
		a.Value, err = s.memory.Read(ctx, c.Name)
	}
	if err != nil {
		a.Err = err.Error()
		errors.As(err, &a.Stale)
	}
	return nil
}

// remote is a resource in another process.
type remote struct{ client *rpc.Client }

func (r *remote) call(c Call) (string, error) {
	var a Answer
	if err := r.client.Call("Served.Call", c, &a); err != nil {
		return "", err
	}
	switch {
	case a.Stale != nil:
		return "", a.Stale
	case a.Err != "":
		return "", errors.New(a.Err)
	}
	return a.Value, nil
}

func (r *remote) Advance(_ context.Context, name string, token uint64) error {
	_, err := r.call(Call{Do: "advance", Name: name, Token: token})
	return err
}

func (r *remote) Write(_ context.Context, name string, token uint64, value string) error {
	_, err := r.call(Call{Do: "write", Name: name, Token: token, Value: value})
	return err
}

func (r *remote) Overwrite(_ context.Context, name, value string) error {
	_, err := r.call(Call{Do: "overwrite", Name: name, Value: value})
	return err
}

func (r *remote) Read(_ context.Context, name string) (string, error) {
	return r.call(Call{Do: "read", Name: name})
}

func TestRule(t *testing.T) { fencetest.Rule(t, open, "rule") }

func TestLoad(t *testing.T) { fencetest.Load(t, open, "load", "load, unfenced") }

func TestPaused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	server := rpc.NewServer()
	if err := server.Register(&Served{&memory{cells: map[string]string{}}}); err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed
			}
			go server.ServeConn(conn)
		}
	}()
	fencetest.Paused(t, open, backends.SharedRedis(t).URL(), l.Addr().String())
}

// with advances, and returns what must be there.
func with(t testing.TB, f *fencing.Fence, token uint64) *fencing.Writer {
	t.Helper()
	w, err := f.With(fencing.GrantOf("n", token))
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// A With waits for writes under older tokens that have begun, so that the one that advanced
// reads all that they wrote; and no further one may begin.
func TestWithWaitsForWrites(t *testing.T) {
	f := fencing.NewFence("n", 3)
	begun, finish := make(chan struct{}), make(chan struct{})
	fifth := with(t, f, 5)
	var older sync.WaitGroup
	ended := false
	older.Go(func() {
		_ = fifth.Do(func() error {
			close(begun)
			<-finish
			ended = true
			return nil
		})
	})
	<-begun
	// Another write of the same token runs beside it, and does not wait.
	if err := fifth.Do(func() error { return nil }); err != nil {
		t.Errorf("an equal token: %v", err)
	}
	advanced := make(chan error, 1) // one slot: it ends also if the test has failed
	go func() {
		_, err := f.With(fencing.GrantOf("n", 6))
		if !ended { // the race detector would see it too
			err = errors.Join(err, errors.New("the older write has not ended"))
		}
		advanced <- err
	}()
	select {
	case err := <-advanced:
		t.Errorf("With did not wait: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(finish)
	if err := <-advanced; err != nil {
		t.Error(err)
	}
	older.Wait()
	if err := fifth.Do(func() error { t.Error("a late write ran"); return nil }); !errors.Is(err, fencing.ErrStale) {
		t.Errorf("a write after the With: %v", err)
	}
}

// The error of a write is the caller's, and its token has been here all the same.
func TestFenceKeepsTokenOfFailedWrite(t *testing.T) {
	f := fencing.NewFence("n", 0)
	failed := errors.New("failed")
	if err := with(t, f, 7).Do(func() error { return failed }); err != failed {
		t.Errorf("got %v", err)
	}
	if f.Seen() != 7 {
		t.Errorf("seen %d", f.Seen())
	}
}

// A lease of another lock is refused: its token says nothing here.
func TestFenceOfAnotherLock(t *testing.T) {
	f := fencing.NewFence("n", 3)
	if _, err := f.With(fencing.GrantOf("other", 9)); !errors.Is(err, fencing.ErrInvalid) {
		t.Errorf("got %v", err)
	}
	if f.Seen() != 3 {
		t.Errorf("seen %d", f.Seen())
	}
}

func BenchmarkFence(b *testing.B) {
	cell := 0
	write := func() error { cell++; return nil }
	b.Run("unfenced", func(b *testing.B) {
		for b.Loop() {
			_ = write()
		}
	})
	b.Run("fenced", func(b *testing.B) {
		w := with(b, fencing.NewFence("n", 0), 7)
		for b.Loop() {
			if err := w.Do(write); err != nil {
				b.Fatal(err)
			}
		}
	})
}
