package drivertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hasplock/hasp"
)

// CyclesEnv names the environment variable that sets how many cycles the test of leaks
// runs. The default keeps a run short; before a release make it 100000 (L6).
const CyclesEnv = "HASP_DRIVERTEST_CYCLES"

var leakTests = []test{
	{name: "Cycles", solo: true, run: testLeaks},
}

// usage counts resources of which a process must not have more after many cycles than before.
type usage struct {
	goroutines  int
	descriptors map[string]string // the target of each, by number
}

func used() usage {
	// Tests of another run of the suite wait beside this one, each on a goroutine.
	ready := begun()["testing.(*T).Run"]
	u := usage{goroutines: runtime.NumGoroutine() - ready, descriptors: map[string]string{}}
	// On other systems than Linux this fails, and only goroutines are counted.
	dir, _ := os.ReadDir("/proc/self/fd")
	for _, d := range dir {
		// The descriptor by which the directory was read has gone by now.
		if to, err := os.Readlink("/proc/self/fd/" + d.Name()); err == nil {
			u.descriptors[d.Name()] = to
		}
	}
	return u
}

// beyond names what there is more of than before.
func (u usage) beyond(before usage) string {
	var fresh []string
	for fd, to := range u.descriptors {
		if before.descriptors[fd] != to {
			fresh = append(fresh, fd+" -> "+to)
		}
	}
	slices.Sort(fresh)
	return fmt.Sprintf("%d goroutines, before %d; %d descriptors, before %d; new are %q",
		u.goroutines, before.goroutines, len(u.descriptors), len(before.descriptors), fresh)
}

// begun counts the goroutines by the function that started them.
func begun() map[string]int {
	text := make([]byte, 1<<20)
	text = text[:runtime.Stack(text, true)]
	by := map[string]int{}
	for line := range strings.Lines(string(text)) {
		if starter, ok := strings.CutPrefix(line, "created by "); ok {
			starter, _, _ = strings.Cut(strings.TrimSpace(starter), " in goroutine ")
			by[starter]++
		}
	}
	return by
}

// L6: in whichever way acquisitions end, nothing accumulates: no goroutine, no descriptor, no
// entry. If there is more than before, the same is done once more: a leak grows again, and what a
// client library begins late on a connection that it has (rueidis: two goroutines) does not.
func testLeaks(e *env) {
	cycles := 150
	if s := os.Getenv(CyclesEnv); s != "" {
		var err error
		if cycles, err = strconv.Atoi(s); err != nil {
			e.Fatalf("%s: %v", CyclesEnv, err)
		}
	}
	// A pool may open a connection more or less; a leak of one in fifty cycles shows.
	const slack = 2
	b, name := e.backend(), e.name()
	c, other := e.client(), e.client()
	for range 10 { // pools fill, lazy things start
		e.cycle(c, other, name)
	}
	e.empty(b, name)
	e.settle()
	var before, after usage
	var starters map[string]int
	for range 2 {
		before, starters = used(), begun()
		for range cycles {
			e.cycle(c, other, name)
		}
		e.empty(b, name)
		if e.comes(func() bool {
			after = used()
			return after.goroutines <= before.goroutines+slack && len(after.descriptors) <= len(before.descriptors)+slack
		}) {
			return
		}
	}
	e.Errorf("after %d cycles %s", cycles, after.beyond(before))
	for starter, n := range begun() {
		if n > starters[starter] {
			e.Errorf("%d goroutines begun by %s, before %d", n, starter, starters[starter])
		}
	}
}

// cycle acquires and ends it in each way there is.
func (e *env) cycle(c, other *client, name string) {
	e.Helper()
	ctx := e.ctx()
	held := e.must(c.Mutex(name).Lock(ctx))
	held.Context() // has a goroutine or a timer, if any part of a lease has
	if _, err := other.Mutex(name).TryLock(ctx); !errors.Is(err, hasp.ErrBusy) {
		e.Fatalf("try: %v", err)
	}
	quit, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	if _, err := other.Mutex(name).Lock(quit); !errors.Is(err, context.DeadlineExceeded) {
		e.Fatalf("waiting for a millisecond: %v", err)
	}
	waiter, err := hasp.New(e.h.Open(e), hasp.WithTTL(e.longTTL()))
	if err != nil {
		e.Fatalf("new client: %v", err)
	}
	defer waiter.Close() // for a cycle that fails
	waiting := make(chan error, 1)
	go func() {
		l, err := waiter.Mutex(name).Lock(ctx)
		if err == nil {
			l.Context() // not released: closing the client does
		}
		waiting <- err
	}()
	e.release(held)
	if err := <-waiting; err != nil {
		e.Fatalf("lock: %v", err)
	}
	if err := waiter.Close(); err != nil {
		e.Fatalf("close: %v", err)
	}
}
