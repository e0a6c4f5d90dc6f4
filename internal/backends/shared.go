package backends

import (
	"errors"
	"os"
	"sync"
	"testing"

	"github.com/hasplock/hasp/internal/serverprocess"
)

// Process is a running server, or one that was stopped and can be restarted.
type Process = serverprocess.Process

// server is the common interface of the topologies: one process or several.
type server interface {
	Logs() string
	Discard() error // kills the processes, removes the data
}

// private starts a server for one test and removes it when the test ends. If the test
// has failed, the end of the server's log is in its output.
func private[S server](tb testing.TB, start func() (S, error), tools ...*tool) S {
	tb.Helper()
	need(tb, tools...)
	s, err := start()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("the server's log:\n%s", s.Logs())
		}
		if err := s.Discard(); err != nil {
			tb.Error(err)
		}
	})
	return s
}

// once starts a server at the first call and returns the same one ever after, or the same error: a
// start that failed once with both cores busy would fail for every test, slowly. The janitor
// removes it.
type once[S server] struct {
	sync.Once
	s   S
	err error
}

func (o *once[S]) get(tb testing.TB, start func() (S, error), tools ...*tool) S {
	tb.Helper()
	need(tb, tools...)
	o.Do(func() { o.s, o.err = start() })
	if o.err != nil {
		tb.Fatal(o.err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("the shared server's log:\n%s", o.s.Logs())
		}
	})
	return o.s
}

// group is several servers that belong together.
type group []*Process

func (g group) Logs() string {
	var out string
	for _, p := range g {
		out += "== " + p.Name() + "\n" + p.Logs()
	}
	return out
}

// KillAll kills every server, as Process.Kill does one.
func (g group) KillAll() error { return g.each((*Process).Kill) }

// RestartAll restarts every server at the same time: in most clusters none serves, and so
// no Restart returns, before a majority runs.
func (g group) RestartAll() error { return g.each((*Process).Restart) }

func (g group) Discard() error { return g.each((*Process).Discard) }

func (g group) each(do func(*Process) error) error {
	errs := make([]error, len(g))
	var wg sync.WaitGroup
	for i, p := range g {
		wg.Go(func() { errs[i] = do(p) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// startAll starts n servers at the same time. After an error none is left.
func startAll[S server](n int, start func(i int) (S, error)) ([]S, error) {
	all, errs := make([]S, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { all[i], errs[i] = start(i) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		for i, s := range all {
			if errs[i] == nil {
				err = errors.Join(err, s.Discard())
			}
		}
		return nil, err
	}
	return all, nil
}

// demanded reports whether a missing server fails a test instead of skipping it.
func demanded() bool { return os.Getenv("REQUIRE_BACKENDS") == "1" }
