package hasp_test

import (
	"context"
	"encoding/base64"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

func (t *spoiledTicket) Adopt(ctx context.Context, id string, seq uint64) (v driver.Verdict, err error) {
	err = t.b.do(ctx, "adopt", func() (err error) {
		v, err = t.Ticket.(driver.Adopter).Adopt(ctx, id, seq)
		return err
	})
	return v, err
}

func export(t *testing.T, l *hasp.Lease) string {
	t.Helper()
	text, err := l.Export()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// The old lease has ended when there is a text, both sides are told what they did, and the
// options of the importer count from the import.
func TestTransfer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rec recorder
		b, other, _ := pair(t, hasp.WithObserver(&rec))
		c := client(t, b.Backend, hasp.WithObserver(&rec))
		l, err := c.RWMutex("a").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Downgrade(t.Context()); err != nil {
			t.Fatal(err)
		}
		work := l.Context()
		text := export(t, l)
		if l.Held() || work.Err() == nil {
			t.Error("held after the export")
		}
		select {
		case <-l.Lost():
			t.Error("told as a loss")
		default:
		}
		got, err := other.Import(t.Context(), text+"\n", hasp.MaxHold(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		if got.Token() != l.Token() || got.Name() != "a" {
			t.Errorf("token %d of %q, exported was %d", got.Token(), got.Name(), l.Token())
		}
		if kinds, _ := rec.take(); !slices.Equal(kinds, []hasp.EventKind{hasp.EventAcquired, hasp.EventReleased, hasp.EventAcquired}) {
			t.Errorf("events %v", kinds)
		}
		// It is a reader, as it was.
		if r, err := c.RWMutex("a").TryRLock(t.Context()); err != nil {
			t.Error(err)
		} else if err := r.Release(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(50 * time.Second)
		if !got.Held() {
			t.Errorf("lost: %v", got.Err())
		}
		time.Sleep(11 * time.Second)
		wantErr(t, got.Err(), hasp.ErrLost)
	})
}

// No client imports: the exporter releases after a TTL, and not before.
func TestExportUnclaimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, other := pair(t)
		text := export(t, lock(t, c, "a"))
		began := time.Now()
		r := <-lockLater(t.Context(), other, "a")
		if r.err != nil {
			t.Fatal(r.err)
		}
		if took := r.at.Sub(began); took != T {
			t.Errorf("given back after %s", took)
		}
		_, err := c.Import(t.Context(), text)
		wantErr(t, err, hasp.ErrNotHeld)
	})
}

// An exported lock that was held on within the process goes to the store's next, and the
// process's own waiter stands behind.
func TestExportFromBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, other := pair(t)
		m := c.Mutex("a", hasp.LocalHandOver(4, time.Minute))
		l, err := m.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		local := make(chan error, 1)
		go func() {
			_, err := m.Lock(t.Context())
			local <- err
		}()
		synctest.Wait()
		got, err := other.Import(t.Context(), export(t, l))
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(local) > 0 {
			t.Errorf("two hold: %v", <-local)
		}
		if n := entries(t, c, "a"); n != 2 {
			t.Errorf("%d entries", n)
		}
		if err := got.Release(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-local; err != nil {
			t.Error(err)
		}
	})
}

func TestExportRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, _ := pair(t)
		_, err := (*hasp.Lease)(nil).Export()
		wantErr(t, err, hasp.ErrNotHeld)
		l := lock(t, c, "a")
		again, err := c.Mutex("a", hasp.Reentrant()).Lock(l.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = l.Export()
		wantErr(t, err, hasp.ErrDeadlock)
		if !l.Held() {
			t.Errorf("a refused export ended the lease: %v", l.Err())
		}
		if err := again.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		export(t, l)
		_, err = l.Export()
		wantErr(t, err, hasp.ErrNotHeld)
		gone := lock(t, c, "b")
		evict(t, b, "b")
		_, err = gone.Export()
		wantErr(t, err, hasp.ErrLost)
		bound := lock(t, client(t, sessionBound{b.Backend}), "c")
		_, err = bound.Export()
		wantErr(t, err, hasp.ErrUnsupported)
		if !bound.Held() {
			t.Errorf("a refused export ended the lease: %v", bound.Err())
		}
	})
}

// sessionBound has entries that no other session can take over.
type sessionBound struct{ driver.Backend }

func (b sessionBound) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	s, granted, err := b.Backend.Open(ctx, o)
	return boundSession{s}, granted, err
}

type boundSession struct{ driver.Session }

func (s boundSession) Ticket(r driver.Request) driver.Ticket {
	return struct{ driver.Ticket }{s.Session.Ticket(r)}
}

func TestImportRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, other := pair(t)
		for _, text := range []string{
			"", "hasp1.", "hasp1.!", "hasp2.e30", "hasp1." + base64.RawURLEncoding.EncodeToString([]byte(`{"name":"a","id":"x","units":2,"capacity":1}`)),
		} {
			_, err := c.Import(t.Context(), text)
			wantErr(t, err, hasp.ErrInvalidOption)
		}
		text := export(t, lock(t, c, "a"))
		_, err := c.Import(noContext, text)
		wantErr(t, err, hasp.ErrInvalidOption)
		_, err = c.Import(t.Context(), text, hasp.MaxHold(-1))
		wantErr(t, err, hasp.ErrInvalidOption)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = c.Import(ended, text)
		wantErr(t, err, context.Canceled)
		_, err = client(t, sessionBound{b.Backend}).Import(t.Context(), text)
		wantErr(t, err, hasp.ErrUnsupported)
		closed := client(t, b.Backend)
		if err := closed.Close(); err != nil {
			t.Fatal(err)
		}
		_, err = closed.Import(t.Context(), text)
		wantErr(t, err, hasp.ErrClosed)
		if _, err := other.Import(t.Context(), text); err != nil { // none of them has spoiled it
			t.Error(err)
		}
	})
}

// S8: the answer to an import is lost, and asked for again; or it never comes, and what the
// store may have given is given back.
func TestImportUnanswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, other := pair(t)
		b.plan("adopt", plan{loseAnswer: errNetwork, times: 2})
		l, err := c.Import(t.Context(), export(t, lock(t, other, "a")))
		if err != nil || !l.Held() || entries(t, other, "a") != 1 {
			t.Errorf("%v, held %t, %d entries", err, l.Held(), entries(t, other, "a"))
		}
		b.plan("adopt", plan{loseAnswer: errNetwork})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = c.Import(ctx, export(t, lock(t, other, "b")))
		wantErr(t, err, context.DeadlineExceeded, errNetwork)
		synctest.Wait()
		if n := entries(t, other, "b"); n != 0 {
			t.Errorf("%d entries are left", n)
		}
		_, err = c.Import(t.Context(), export(t, lock(t, other, "c")))
		wantErr(t, err, hasp.ErrUnknown, errNetwork)
		synctest.Wait()
		if n := entries(t, other, "c"); n != 0 {
			t.Errorf("%d entries are left", n)
		}
	})
}

// The importer's session ends while it asks: it opens another, and asks there.
func TestImportInNextSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, other := pair(t)
		if err := lock(t, c, "idle").Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		text := export(t, lock(t, other, "a"))
		b.plan("adopt", plan{before: 2 * time.Second, times: 1})
		gone := b.opts.Gone
		time.AfterFunc(time.Second, func() { gone("", driver.ErrGone) })
		l, err := c.Import(t.Context(), text)
		if err != nil || !l.Held() || b.opens.Load() != 2 {
			t.Errorf("%v, held %t, %d sessions", err, l.Held(), b.opens.Load())
		}
	})
}
