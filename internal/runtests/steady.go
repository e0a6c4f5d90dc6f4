package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// series is how a tier is repeated, to find tests that depend on how fast the machine is.
type series struct {
	runs  int
	load  int  // threads that do nothing but use a processor
	disk  int  // the run beside which a file is written and synced all the time; 0: none
	fresh bool // each test runs, and go test's cache is not asked: true if any of the flags was given
}

// parseSeries takes the flags in front of the tier.
func parseSeries(args []string) (s series, rest []string, err error) {
	f := flag.NewFlagSet("runtests", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.IntVar(&s.runs, "runs", 1, "")
	f.IntVar(&s.load, "load", 0, "")
	f.IntVar(&s.disk, "disk", 0, "")
	if err := f.Parse(args); err != nil {
		return s, nil, err
	}
	s.fresh = f.NFlag() > 0
	if s.runs < 1 || s.load < 0 || s.disk < 0 || s.disk > s.runs {
		return s, nil, errors.New("-runs must be at least 1, -load at least 0, and -disk the number of a run")
	}
	return s, f.Args(), nil
}

// repeat runs the tests so often, and ends with the first run that fails.
func (s series) repeat(w io.Writer, once func() error) error {
	var said []string
	for i := range s.runs {
		began := time.Now()
		err := s.beside(i+1, once)
		took := time.Since(began).Round(time.Second)
		if s.runs == 1 {
			return err
		}
		said = append(said, fmt.Sprintf("run %d of %d, beside %d busy threads: %s, failed: %t", i+1, s.runs, s.load, took, err != nil))
		for _, line := range said {
			fmt.Fprintln(w, line)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// beside does it beside the load, which has ended when it returns.
func (s series) beside(run int, do func() error) error {
	var stop atomic.Bool
	var load sync.WaitGroup
	defer load.Wait()
	defer stop.Store(true)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(runtime.NumCPU() + s.load)) // each loop has a thread
	for range s.load {
		load.Go(func() {
			for !stop.Load() {
			}
		})
	}
	if run != s.disk {
		return do()
	}
	f, err := os.CreateTemp("", "runtests")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	load.Go(func() {
		defer f.Close()
		write(f, &stop)
	})
	return do()
}

// write writes 2 GB and syncs them, again and again. What fails (a disk that is full) ends it.
func write(f *os.File, stop *atomic.Bool) {
	const chunks = 2000
	for chunk, n := make([]byte, 1<<20), 0; !stop.Load(); n++ {
		at := int64(n%chunks) * int64(len(chunk))
		if _, err := f.WriteAt(chunk, at); err != nil {
			return
		}
		if n%chunks == chunks-1 && f.Sync() != nil {
			return
		}
	}
}
