package backends

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
)

// Program stands in for a test where a program needs servers: bench and interop. What would
// end a test is a panic here, of type Failure, for Run to return.
//
// Embedded is a TB that is nil: the interface cannot be implemented elsewhere, and what the
// functions of this package do not call must not be called.
type Program struct {
	testing.TB

	mu       sync.Mutex
	cleanups []func()
	failed   bool
}

// Failure is why a server could not be had.
type Failure struct{ reason string }

func (f Failure) Error() string { return f.reason }

// Run calls f, cleans up in reverse order, and returns what f has failed with, if it has.
// The goroutine is f's own, as a test's is.
func (p *Program) Run(f func()) (err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer p.cleanUp()
		defer func() {
			switch r := recover().(type) {
			case nil:
			case Failure:
				err = r
			default:
				panic(r)
			}
		}()
		f()
	}()
	<-done
	return err
}

func (p *Program) cleanUp() {
	p.mu.Lock()
	all := p.cleanups
	p.cleanups = nil
	p.mu.Unlock()
	for _, f := range slices.Backward(all) {
		f()
	}
}

// Helper does nothing.
func (p *Program) Helper() {}

// Cleanup has f called when Run ends.
func (p *Program) Cleanup(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cleanups = append(p.cleanups, f)
}

// Failed reports whether Error was called.
func (p *Program) Failed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

// Logf writes to stderr.
func (p *Program) Logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// Error writes to stderr, and has what follows know.
func (p *Program) Error(args ...any) {
	p.mu.Lock()
	p.failed = true
	p.mu.Unlock()
	fmt.Fprintln(os.Stderr, args...)
}

// Fatal ends Run.
func (p *Program) Fatal(args ...any) { panic(Failure{fmt.Sprint(args...)}) }

// Skip ends Run: a program that has asked for a server cannot do without it.
func (p *Program) Skip(args ...any) { p.Fatal(args...) }

// Name is the program's.
func (p *Program) Name() string { return os.Args[0] }
