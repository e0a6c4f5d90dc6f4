package simulation

import (
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// cpu is the processor time of this process.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestRandom runs random schedules of all families for SIMULATE (25s) of processor time: on
// each processor some with seeds that are the same in each run, and then others.
func TestRandom(t *testing.T) {
	budget := 25 * time.Second
	if text := os.Getenv("SIMULATE"); text != "" {
		var err error
		if budget, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	began := cpu()
	var n atomic.Int64
	t.Run("processors", func(t *testing.T) {
		for p := range runtime.GOMAXPROCS(0) {
			t.Run(strconv.Itoa(p), func(t *testing.T) {
				t.Parallel()
				in, found := newInterpreter(), map[string]bool{}
				for seed := uint64(p) << 32; cpu()-began < budget; seed++ {
					if seed == uint64(p)<<32+fixedSeeds {
						seed = uint64(time.Now().UnixNano())
					}
					n.Add(1)
					f := &families[seed%uint64(len(families))]
					f.try(t, in, seed, found)
				}
			})
		}
	})
	t.Logf("%d schedules in %v of processor time", n.Load(), (cpu() - began).Round(time.Second))
}

// fixedSeeds is how many of the seeds are the same in each run.
const fixedSeeds = 500

// try runs one schedule. Of each kind of violation it shows the first.
func (f *family) try(t *testing.T, in *interpreter, seed uint64, found map[string]bool) {
	s := f.generate(rand.New(rand.NewPCG(seed, 0)))
	wrong := s.run(t, in, nil, nil)
	if len(wrong) == 0 {
		return
	}
	t.Fail()
	if key := f.name + wrong[0].kind; !found[key] {
		found[key] = true
		t.Errorf("%s, seed %d: %s: %s\nA shorter schedule that shows it:\n%s",
			f.name, seed, wrong[0].kind, wrong[0].text, s.shrink(t, in, nil, wrong[0].kind))
	}
}
