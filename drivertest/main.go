package drivertest

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp"
)

// childEnv has the setting of a process that the suite started, as JSON.
const childEnv = "HASP_DRIVERTEST_CHILD"

// Main is for TestMain: it runs the tests or, in a process that the suite has started from the same
// binary, that process's task. It does not return.
//
// Tests of a driver wait, for servers and for TTLs, and hardly compute. So eight of them may
// run at a time though there are fewer processors; a -parallel on the command line wins.
func Main(m *testing.M) {
	s := os.Getenv(childEnv)
	if s == "" {
		if err := flag.Set("test.parallel", strconv.Itoa(max(8, runtime.GOMAXPROCS(0)))); err != nil {
			panic(err) // package testing has renamed it
		}
		os.Exit(m.Run())
	}
	if err := child(s, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "drivertest: child:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

type setting struct {
	URL string
	TTL time.Duration
}

// order is a line that the suite writes to a child.
type order struct {
	Do    string
	Name  string `json:",omitempty"`
	File  string `json:",omitempty"`
	Times int    `json:",omitempty"`
}

// report is a line that a child writes to the suite.
type report struct {
	Event   string    // ready, waiting, requeued, acquired, failed, released, answer, done
	ID      string    `json:",omitempty"`
	Token   uint64    `json:",omitempty"`
	Error   string    `json:",omitempty"`
	Lost    bool      `json:",omitempty"` // Error wraps ErrLost
	Ended   bool      `json:",omitempty"` // its session has ended under it, without an outcome
	Unknown bool      `json:",omitempty"` // Error wraps ErrUnknown
	Held    bool      `json:",omitempty"`
	Last    time.Time `json:",omitzero"` // just before the last call of Held that said yes
}

// with adds an error.
func (r report) with(err error) report {
	r.Error, r.Lost, r.Ended, r.Unknown = err.Error(), errors.Is(err, hasp.ErrLost), sessionEnded(err), errors.Is(err, hasp.ErrUnknown)
	return r
}

// worker is a child process: one client that follows orders until its input ends, as it does when
// the suite's process dies.
type worker struct {
	client *hasp.Client

	mu    sync.Mutex // also keeps the lines of the output apart
	out   *json.Encoder
	lease *hasp.Lease
	last  time.Time
}

func child(s string, in io.Reader, out io.Writer) error {
	var set setting
	if err := json.Unmarshal([]byte(s), &set); err != nil {
		return err
	}
	w := &worker{out: json.NewEncoder(out)}
	if err := w.open(set); err != nil {
		return err
	}
	w.tell(report{Event: "ready"})
	for orders := json.NewDecoder(in); ; {
		var o order
		if err := orders.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		w.carryOut(o)
	}
}

// open opens until it succeeds, or fails by something else than time: a store on a busy machine may
// not answer as soon as its driver demands. No driver gives up in less than a second unless it says
// that a deadline has passed.
func (w *worker) open(set setting) (err error) {
	for end := time.Now().Add(30 * time.Second); ; {
		began := time.Now()
		w.client, err = hasp.Open(context.Background(), set.URL, hasp.WithTTL(set.TTL), hasp.WithObserver(w))
		late := errors.Is(err, context.DeadlineExceeded) || time.Since(began) > time.Second
		if err == nil || !late || time.Now().After(end) {
			return err
		}
	}
}

func (w *worker) tell(r report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.out.Encode(r) // if the suite has gone, the input ends next
}

// Observe reports waiting.
func (w *worker) Observe(ev hasp.Event) {
	if ev.Kind == hasp.EventWaiting || ev.Kind == hasp.EventRequeued {
		w.tell(report{Event: string(ev.Kind)})
	}
}

func (w *worker) carryOut(o order) {
	switch o.Do {
	case "lock":
		go w.lock(o.Name)
	case "increment":
		go w.increment(o)
	case "held":
		// The first thing after a pause, if the process was stopped since the last order.
		held := w.lease.Held()
		w.mu.Lock()
		last := w.last
		w.mu.Unlock()
		w.tell(report{Event: "answer", Held: held, Last: last})
	case "release":
		r := report{Event: "released"}
		if err := w.lease.Release(context.Background()); err != nil {
			r = r.with(err)
		}
		w.tell(r)
	default:
		w.tell(report{Event: "failed", Error: "unknown order " + o.Do})
	}
}

func (w *worker) lock(name string) {
	l, err := w.client.Mutex(name).Lock(context.Background())
	if err != nil {
		w.tell(report{Event: "failed"}.with(err))
		return
	}
	w.mu.Lock()
	w.lease = l
	w.mu.Unlock()
	w.tell(report{Event: "acquired", ID: l.ID(), Token: l.Token()})
	// This stands for a caller that relies on Held all the time. The clock is read before the call:
	// a yes is a claim about some moment after that reading.
	for {
		at := time.Now()
		if !l.Held() {
			return
		}
		w.mu.Lock()
		w.last = at
		w.mu.Unlock()
		time.Sleep(200 * time.Microsecond)
	}
}

// increment adds to the number in a file under the lock, in two steps, and checks that the
// token grows with it.
func (w *worker) increment(o order) {
	done := report{Event: "done"}
	for range o.Times {
		if err := w.once(o); err != nil {
			done = done.with(err)
			break
		}
	}
	w.tell(done)
}

func (w *worker) once(o order) error {
	l, err := w.client.Mutex(o.Name).Lock(context.Background())
	if err != nil {
		return err
	}
	if err := bump(o.File, l.Token()); err != nil {
		if !l.Held() { // it was lost in a pause since the grant, and the next has been here
			err = errors.Join(err, l.Err())
		}
		return err
	}
	return l.Release(context.Background())
}

// bump rewrites "number token" in place: the longest line it will ever have is written at once, so
// that a kill leaves the old or the new content.
func bump(file string, token uint64) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var n, last uint64
	if _, err := fmt.Sscan(string(b), &n, &last); err != nil {
		return fmt.Errorf("the file says %q: %w", b, err)
	}
	if token != 0 && token <= last {
		return fmt.Errorf("token %d after %d", token, last)
	}
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = fmt.Fprintf(f, "%-20d %-20d\n", n+1, token)
	return err
}
