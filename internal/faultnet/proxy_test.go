package faultnet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestCutIsAFINForBoth(t *testing.T) {
	l := newLab(t)
	c := l.dial(t)
	c.ask("x")
	l.Cut()
	c.mustEndWith(errFIN)
	l.server.waitFor(t, "a FIN", func() bool { return slices.Equal(l.server.ends, []error{errFIN}) })
	l.dial(t).ask("new connections pass")
}

// Bytes on their way must not turn the FIN into a reset, which a kernel sends when a
// socket with unread bytes is closed.
func TestCutUnderTrafficIsStillAFIN(t *testing.T) {
	l := newLab(t)
	for range 15 {
		c := l.dial(t)
		c.ask("start")
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					fmt.Fprintln(c, "chatter") // errors are expected after the cut
				}
			}
		})
		for range 5 {
			c.mustReceive("re:chatter")
		}
		l.Cut()
		var err error
		for err == nil {
			_, err = c.receive()
		}
		close(stop)
		wg.Wait()
		if !errors.Is(err, errFIN) {
			t.Fatalf("the client's stream ended with %v", err)
		}
		c.Close()
	}
}

func TestResetIsARSTForBoth(t *testing.T) {
	l := newLab(t)
	c := l.dial(t)
	c.ask("x")
	l.Reset()
	c.mustEndWith(errRST)
	l.server.waitFor(t, "a RST", func() bool { return len(l.server.ends) == 1 && errors.Is(l.server.ends[0], errRST) })
	if s := l.Stats(); s.Live != 0 {
		t.Fatalf("%d connections live after Reset", s.Live)
	}
}

func TestClientsResetReachesTheServer(t *testing.T) {
	l := newLab(t)
	c := l.dial(t)
	c.ask("x")
	reset(c.TCPConn)
	l.server.waitFor(t, "a RST", func() bool { return len(l.server.ends) == 1 && errors.Is(l.server.ends[0], errRST) })
}

func TestRefuseIsRealAndTheSamePortComesBack(t *testing.T) {
	l := newLab(t)
	c := l.dial(t)
	c.ask("before")
	for range 20 {
		l.Refuse()
		if conn, err := net.Dial("tcp", l.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("dial: %v, %v; want connection refused", conn, err)
		}
		c.ask("live connections go on")
		if err := l.Accept(); err != nil {
			t.Fatal(err)
		}
		again := l.dial(t)
		again.ask("after")
		again.Close()
	}
}

// While a proxy refuses, no other proxy of any process may take its port.
func TestRefusingKeepsThePort(t *testing.T) {
	l := newLab(t)
	l.Refuse()
	if other, err := reserve(l.Addr()); err == nil {
		other.Close()
		t.Fatalf("%s was given away", l.Addr())
	}
	l.Close()
	other, err := reserve(l.Addr())
	if err != nil {
		t.Fatalf("a closed proxy keeps its port: %v", err)
	}
	other.Close()
}

func TestRebuffCountsDials(t *testing.T) {
	l := newLab(t)
	old := l.dial(t)
	old.ask("before")
	if err := l.Rebuff(); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		l.mustBeReset(t)
	}
	l.until(t, "all dials are counted", func(s Stats) bool { return s.Accepted == 6 && s.Live == 1 })
	old.ask("live connections go on")
	if n := l.server.connections(); n != 1 {
		t.Fatalf("the server has seen %d connections", n)
	}
	if err := l.Accept(); err != nil {
		t.Fatal(err)
	}
	l.dial(t).ask("after")
}

func TestServerDownResetsTheClient(t *testing.T) {
	l := newLab(t)
	l.server.stop()
	l.mustBeReset(t)
}

// What a server that is down has to say travels like an answer.
func TestServerDownBehindAHold(t *testing.T) {
	l := newLab(t)
	l.server.stop()
	l.Set(Down, Rule{Mode: Hold})
	c := l.dial(t)
	c.send("to no one")
	l.until(t, "the request is lost", func(s Stats) bool { return s.Up.Lost == int64(len("to no one\n")) })
	c.mustStaySilent()
	l.Heal()
	c.mustEndWith(errRST)
}

func TestOnlyLoopbackTargets(t *testing.T) {
	for _, target := range []string{"192.0.2.1:80", "example.com:80", "0.0.0.0:80", "127.0.0.1", "", ":80"} {
		if p, err := New(t.Context(), target); err == nil || !strings.Contains(err.Error(), "target") {
			t.Errorf("New(%q) = %v, %v", target, p, err)
		}
	}
}

func TestRemoteTargets(t *testing.T) {
	p, err := NewRemote(t.Context(), "192.0.2.1:80") // nothing is dialled before a client is
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Redirect("192.0.2.2:80"); err != nil {
		t.Error(err)
	}
	if p, err := NewRemote(t.Context(), "192.0.2.1"); err == nil {
		t.Errorf("a target without a port: %v", p)
	}
}

func TestCloseEndsEverything(t *testing.T) {
	for _, held := range []bool{false, true} {
		t.Run(fmt.Sprintf("held=%v", held), func(t *testing.T) {
			before := runtime.NumGoroutine()
			s := startServer(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			p, err := New(ctx, s.listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			l := &lab{p, s}
			for range 10 {
				l.dial(t).ask("x")
			}
			if held {
				l.Partition()
				l.dial(t).send("y")
				l.until(t, "it waits", upHas(2))
				cancel() // the context ends the proxy too
				l.until(t, "all connections have ended", func(s Stats) bool { return s.Live == 0 })
			}
			p.Close()
			if stacks := allStacks(); strings.Contains(stacks, "(*pipe).") {
				t.Fatalf("Close returned before all goroutines had ended:\n%s", stacks)
			}
			p.Close()
			if n := p.Stats(); n.Live != 0 || n.Up.Waiting() != 0 || n.Down.Waiting() != 0 {
				t.Fatalf("after Close: %+v", n)
			}
			if conn, err := net.Dial("tcp", p.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Fatalf("dial after Close: %v, %v", conn, err)
			}
			if err := p.Accept(); err == nil {
				t.Fatal("Accept after Close succeeded")
			}
			s.stop()
			noGoroutinesAbove(t, before)
		})
	}
}

// Under any rule of the network an answer is either exact or missing. And once it is healed, every
// client is served.
func TestChaosNeverCorrupts(t *testing.T) {
	l := newLab(t)
	ctx, cancel := context.WithCancel(t.Context())
	var users sync.WaitGroup
	var mu sync.Mutex
	answered := 0
	for u := range 6 {
		users.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				n, err := talk(l.Addr(), fmt.Sprintf("user %d round %d", u, i))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				answered += n
				mu.Unlock()
			}
		})
	}
	faults := []func(){
		l.Partition, l.Heal, l.Cut, l.Reset, l.Refuse,
		func() { _ = l.Rebuff() },
		func() { _ = l.Accept() },
		func() { l.Set(Up, Rule{Slice: 2}) },
		func() { l.Set(Down, Rule{Slice: 1, Delay: time.Millisecond}) },
		func() { l.Set(Down, Rule{Delay: time.Millisecond, Jitter: 5 * time.Millisecond}) },
		func() { l.Set(Up, Rule{Mode: Drop}) },
		func() { l.Set(Down, Rule{Mode: Drop}) },
		func() { l.Lose(Down, 1+rand.IntN(2), nil) },
		func() { l.Lose(Up, 1, nil) },
	}
	for range 300 {
		faults[rand.IntN(len(faults))]()
		time.Sleep(time.Duration(rand.IntN(5)) * time.Millisecond)
	}
	l.Heal()
	if err := l.Accept(); err != nil {
		t.Fatal(err)
	}
	l.dial(t).ask("all is well")
	cancel()
	users.Wait()
	if answered == 0 {
		t.Fatal("no client was ever answered: the test tested nothing")
	}
}

// talk makes a few exchanges on a separate connection and returns how many were answered. Only a
// wrong answer is an error.
func talk(addr, text string) (answered int, err error) {
	conn, err := net.DialTimeout("tcp", addr, limit)
	if err != nil {
		time.Sleep(time.Millisecond)
		return 0, nil
	}
	c := &client{TCPConn: conn.(*net.TCPConn)}
	defer c.Close()
	for i := range 5 {
		line := fmt.Sprintf("%s.%d", text, i)
		c.SetDeadline(time.Now().Add(50 * time.Millisecond))
		fmt.Fprintln(c, line)
		got := make([]byte, len("re:\n")+len(line))
		n := 0
		for n < len(got) {
			k, err := c.Read(got[n:])
			n += k
			if err != nil {
				break
			}
		}
		if want := "re:" + line + "\n"; !strings.HasPrefix(want, string(got[:n])) {
			return answered, fmt.Errorf("sent %q, received %q", line, got[:n])
		}
		if n < len(got) {
			return answered, nil
		}
		answered++
	}
	return answered, nil
}
