package connlock

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/bootclock"
)

// server is one in this process, of one lock. The real ones are tested by pglock and mysqllock.
type server struct {
	holds *link         // the connection that holds
	asks  func(l *link) // is called before each request
	notes int           // how many records fail
	noted []string
	broke chan error
}

// link is a connection to it.
type link struct {
	dropped bool
}

func (s *server) ask(l *link) {
	if s.asks != nil {
		s.asks(l)
	}
}

func (s *server) Check(driver.Request) error          { return nil }
func (s *server) Take(context.Context) (*link, error) { return &link{}, nil }
func (s *server) Keep(*link)                          {}
func (s *server) Drop(l *link)                        { l.dropped = true }
func (s *server) Watch(ctx context.Context, _ *link) error {
	select {
	case err := <-s.broke:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *server) Try(_ context.Context, l *link, _ driver.Request) (Grant, error) {
	s.ask(l)
	if s.holds == nil {
		s.holds = l
	}
	return Grant{Held: s.holds == l, Token: 1}, nil
}

func (s *server) Wait(ctx context.Context, _ *link, _ driver.Request, taken func()) (Grant, error) {
	taken()
	<-ctx.Done()
	return Grant{}, ctx.Err()
}

func (s *server) Failed(_ context.Context, l *link, _ driver.Request, _ bool, err error) error {
	l.dropped = true
	return err
}

func (s *server) Release(_ context.Context, l *link, _ driver.Request) error {
	s.ask(l)
	s.holds = nil
	return nil
}

func (s *server) Confirm(context.Context, *link, driver.Request) error { return driver.ErrGone }

func (s *server) Ping(ctx context.Context, l *link) (bool, error) {
	s.ask(l)
	return ctx.Err() != nil, ctx.Err()
}

func (s *server) Recorder(_ *link, r driver.Request, _ Grant) func(context.Context) error {
	return func(context.Context) error {
		if s.notes > 0 {
			s.notes--
			return errors.New("not now")
		}
		s.noted = append(s.noted, r.ID)
		return nil
	}
}

// open returns a session, and where what it has lost is told.
func open(s *server) (*Session[*link], chan string) {
	gone := make(chan string, 10)
	return New(s, driver.SessionOptions{TTL: 9 * time.Second, Gone: func(id string, _ error) { gone <- id }}, bootclock.Now()), gone
}

// hold takes the lock.
func holding(t *testing.T, s *Session[*link], id string) *Ticket[*link] {
	t.Helper()
	k := s.Ticket(driver.Request{Name: "a", ID: id}).(*Ticket[*link])
	if v, err := k.Enqueue(t.Context()); err != nil || !v.Held {
		t.Fatalf("%+v, %v", v, err)
	}
	return k
}

// A renewal may have looked up the hold before the lock is given back, and get its turn after
// that. The connection then lies idle, or serves another lock: it must not be touched.
func TestNoUseAfterRelease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, gone := open(&server{})
		k := holding(t, s, "x")
		h := k.hold()
		if err := k.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		err := h.use(t.Context(), false, func(context.Context, *link) error {
			t.Error("used after it was given back")
			return nil
		})
		if !errors.Is(err, errOver) || len(gone) > 0 {
			t.Errorf("answered %v, told %d", err, len(gone))
		}
		time.Sleep(2 * Brief) // the timer, which may have fired before
		h.due()
		if h.watch != nil {
			t.Error("watched after it was given back")
		}
	})
}

// The end of a connection is told once, and it is given up. A release of it says that it was lost.
func TestLossIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &server{broke: make(chan error, 1)}
		s, gone := open(server)
		k := holding(t, s, "x")
		c := k.hold().conn
		time.Sleep(2 * Brief)
		synctest.Wait()
		server.broke <- errors.New("cut")
		synctest.Wait()
		if len(gone) != 1 || <-gone != "x" || !c.dropped {
			t.Errorf("the end of a connection was not told, or it was not given up (%t)", c.dropped)
		}
		if err := k.Leave(t.Context()); !errors.Is(err, driver.ErrGone) {
			t.Errorf("released: %v", err)
		}
		if granted, err := s.KeepAlive(t.Context()); err != nil || granted != 9*time.Second {
			t.Errorf("renewed without it: %s, %v", granted, err)
		}
	})
}

// A connection that is silent is late alone, with what is left of its time. It is given up, and its
// loss told, when that time is over, and not before.
func TestSilentIsLateAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		silent := false
		server := &server{}
		s, gone := open(server)
		began := time.Now()
		a := holding(t, s, "a")
		server.holds = nil // of another name
		holding(t, s, "b")
		server.asks = func(l *link) {
			if silent && l == a.hold().conn {
				time.Sleep(time.Minute)
			}
		}
		time.Sleep(time.Second)
		silent = true
		for n := 1; n < 3; n++ {
			short, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			granted, err := s.KeepAlive(short)
			cancel()
			late := new(driver.PartialRenewal)
			if !errors.As(err, &late) || len(late.Late) != 1 || late.Granted != s.Granted {
				t.Fatalf("%s, %v; want that one is late", granted, err)
			}
			if left := late.Late["a"]; left > s.Granted-time.Since(began)+3*time.Second {
				t.Errorf("after %s it has %s left", time.Since(began), left)
			}
		}
		if len(gone) > 0 {
			t.Errorf("%s was lost, after %s", <-gone, time.Since(began))
		}
		time.Sleep(2 * time.Minute)
		if len(gone) != 1 || <-gone != "a" {
			t.Error("a connection that is silent was not given up")
		}
		_ = s.Close(t.Context())
	})
}

// A record that fails is made again while the lock is held, and one of a lock that has left is not.
func TestRecordIsRepeated(t *testing.T) {
	t.Parallel()
	for _, leaves := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			server := &server{notes: 2}
			s, _ := open(server)
			k := holding(t, s, "x")
			time.Sleep(2 * Brief)
			if leaves {
				if err := k.Leave(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(3 * s.Granted)
			synctest.Wait()
			if recorded := fmt.Sprint(server.noted) == "[x]"; recorded == leaves {
				t.Errorf("left: %t, recorded %v", leaves, server.noted)
			}
			_ = s.Close(context.Background())
		})
	}
}

// A waiter's connection ends with its ticket, and with the session, but not with the call that began
// to wait.
func TestWaitingEnds(t *testing.T) {
	t.Parallel()
	for _, end := range []func(*testing.T, *Session[*link], driver.Ticket) error{
		func(t *testing.T, _ *Session[*link], w driver.Ticket) error { return w.Leave(t.Context()) },
		func(t *testing.T, s *Session[*link], _ driver.Ticket) error { return s.Close(t.Context()) },
	} {
		synctest.Test(t, func(t *testing.T) {
			s, _ := open(&server{holds: &link{}})
			w := s.Ticket(driver.Request{Name: "a", ID: "w"})
			call, cancel := context.WithCancel(t.Context())
			if v, err := w.Enqueue(call); err != nil || v.Held {
				t.Fatalf("%+v, %v", v, err)
			}
			cancel()
			waited := make(chan error, 1)
			go func() { _, err := w.Wait(t.Context()); waited <- err }()
			synctest.Wait()
			if len(waited) > 0 {
				t.Fatalf("the waiting ended with the call that began it: %v", <-waited)
			}
			if err := end(t, s, w); err != nil {
				t.Error(err)
			}
			if err := <-waited; !errors.Is(err, driver.ErrGone) {
				t.Errorf("waited: %v", err)
			}
			_ = s.Close(t.Context())
		})
	}
}
