package kubelock_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/testkit"
)

// pausedStore is the variable that makes the test binary the process which is stopped; blindly has
// it believe what it knew last, without a look at the clocks.
const (
	pausedStore = "HASP_KUBE_PAUSED"
	blindly     = "HASP_KUBE_BLIND"
)

// A process of hasp is stopped for longer than the TTL, again and again, while an elector of
// client-go waits: it never says that it holds at a moment at which the other leads. The control
// asks no clock, and is seen.
func TestPausedBesideLeaderElector(t *testing.T) {
	if store := os.Getenv(pausedStore); store != "" {
		holdUntilKilled(t, store)
		return
	}
	c := shared(t)
	t.Parallel()
	for _, blind := range []bool{false, true} {
		t.Run(fmt.Sprint("blind ", blind), func(t *testing.T) {
			t.Parallel()
			ns := fmt.Sprint("paused-", blind)
			c.namespace(t, ns)
			said := startPaused(t, c.url(t, ns), blind)
			doubles, terms := 0, 0
			for round := 0; round < 5 && !(blind && doubles > 0); round++ {
				said.hears(t)
				n, led := stopFor(t, c, ns, said, ttl+ttl/4+rand.N(ttl))
				doubles += n
				terms += led
			}
			if terms == 0 {
				t.Fatal("client-go never led")
			}
			if blind != (doubles > 0) {
				t.Errorf("said in a term of client-go's that it holds: %d times in %d terms", doubles, terms)
			}
		})
	}
}

// stopFor stops the process for so long, while an elector tries to lead, and returns how often it
// said that it holds while that led.
func stopFor(t *testing.T, c cluster, ns string, said *paused, pause time.Duration) (doubles, terms int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(said.process.Signal(syscall.SIGSTOP))
	resumed := make(chan struct{})
	time.AfterFunc(pause, func() {
		defer close(resumed)
		_ = said.process.Signal(syscall.SIGCONT)
	})
	l, err := elector{c: c, namespace: ns, name: "a", identity: fmt.Sprint("client-go-", time.Now().UnixNano())}.lock(ctx)
	must(err)
	from := time.Now()
	testkit.Await(t, "the end of the pause", resumed)
	time.Sleep(ttl / 3) // it runs again, beside the leader
	to := time.Now()
	if !l.Held() {
		return 0, 0 // client-go has lost it to a busy machine, and proves nothing
	}
	_ = l.Release(ctx)
	for _, at := range said.moments() {
		if at.After(from) && at.Before(to) {
			doubles++
		}
	}
	return doubles, 1
}

// paused is the process, and what it said.
type paused struct {
	process *os.Process
	held    chan time.Time
}

func startPaused(t *testing.T, store string, blind bool) *paused {
	t.Helper()
	cmd := exec.Command(testkit.Must[string](t)(os.Executable()), "-test.run=^TestPausedBesideLeaderElector$")
	cmd.Env = append(os.Environ(), pausedStore+"="+store)
	if blind {
		cmd.Env = append(cmd.Env, blindly+"=1")
	}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	p := &paused{cmd.Process, make(chan time.Time, 1<<20)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if ns, err := strconv.ParseInt(lines.Text(), 10, 64); err == nil {
				p.held <- time.Unix(0, ns)
			}
		}
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	return p
}

// hears waits until it says that it holds.
func (p *paused) hears(t *testing.T) {
	t.Helper()
	p.moments()
	select {
	case <-p.held:
	case <-time.After(testkit.Patience):
		t.Fatal("it does not hold")
	}
}

// moments are those of which it has said since the last call that it holds.
func (p *paused) moments() (all []time.Time) {
	for {
		select {
		case at := <-p.held:
			all = append(all, at)
		default:
			return all
		}
	}
}

// holdUntilKilled takes the lock again and again, and prints each few milliseconds, while it believes
// that it holds, a moment before the one at which it asked: a pause in between makes a claim older,
// and never false.
func holdUntilKilled(t *testing.T, store string) {
	c := testkit.Client(t, store, hasp.WithTTL(ttl))
	for {
		l, err := c.Mutex("a").Lock(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		lost := l.Context().Done()
		for believes := true; believes; time.Sleep(5 * time.Millisecond) {
			at := time.Now().UnixNano()
			if os.Getenv(blindly) != "" {
				// What a program does that asks only every now and then.
				if at%int64(time.Second) < int64(5*time.Millisecond) {
					select {
					case <-lost:
						believes = false
					default:
					}
				}
			} else {
				believes = l.Held()
			}
			if believes {
				fmt.Println(at)
			}
		}
		_ = l.Release(context.Background())
	}
}
