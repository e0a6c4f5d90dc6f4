//go:build linux

package filelock

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/testkit"
)

func init() {
	jobs["turns"], jobs["wait"], jobs["echo"] = turnsJob, waitJob, echoJob
}

// lockOnce is the least that a file lock can do: open, flock, close.
func lockOnce(b *testing.B, path string) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err == nil {
		err = unix.Flock(fd, unix.LOCK_EX)
	}
	if err == nil {
		err = unix.Close(fd)
	}
	if err != nil {
		b.Fatal(err)
	}
}

func lockAndRelease(b *testing.B, m *hasp.Mutex) {
	l, err := m.Lock(context.Background())
	if err == nil {
		err = l.Release(context.Background())
	}
	if err != nil {
		b.Fatal(err)
	}
}

// One goroutine locks and unlocks: beside the floor, the driver without the core, the
// whole, and the whole on names that were never used before.
func BenchmarkUncontended(b *testing.B) {
	b.Run("floor", func(b *testing.B) {
		path := filepath.Join(b.TempDir(), "file")
		for b.Loop() {
			lockOnce(b, path)
		}
	})
	b.Run("driver", func(b *testing.B) {
		s := openTestSession(b, storeDir(b))
		r := mutexRequest("name", "id")
		for b.Loop() {
			t := s.Ticket(r)
			if v, err := t.Enqueue(context.Background()); err != nil || !v.Held {
				b.Fatal(v, err)
			}
			if err := t.Leave(context.Background()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("hasp", func(b *testing.B) {
		m := testkit.Client(b, "file://"+storeDir(b)).Mutex("name")
		for b.Loop() {
			lockAndRelease(b, m)
		}
	})
	b.Run("new names", func(b *testing.B) {
		c := testkit.Client(b, "file://"+storeDir(b))
		for n := 0; b.Loop(); n++ {
			lockAndRelease(b, c.Mutex("name-"+strconv.Itoa(n)))
		}
	})
}

// Beside so many entries in the same file, of names that are held or waiting for the same name.
func BenchmarkAmong(b *testing.B) {
	for _, n := range []int{0, 10, 100, 1000, 10_000} {
		for _, kind := range []string{"names", "waiters"} {
			b.Run(fmt.Sprint(n, " ", kind), func(b *testing.B) {
				s := openTestSession(b, storeDir(b))
				names := colliding(n + 2)
				r := mutexRequest(names[0], "id")
				if kind == "waiters" {
					r.Name = names[1]
				}
				for i := range n {
					o := mutexRequest(names[1], "other")
					if kind == "names" {
						o.Name = names[1+i]
					}
					if _, err := s.Ticket(o).Enqueue(context.Background()); err != nil {
						b.Fatal(err)
					}
				}
				for b.Loop() {
					t := s.Ticket(r)
					if _, err := t.Enqueue(context.Background()); err != nil {
						b.Fatal(err)
					}
					if err := t.Leave(context.Background()); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// 64 goroutines with a name each.
func BenchmarkParallel(b *testing.B) {
	run := func(b *testing.B, lock func(b *testing.B, n int)) {
		var last atomic.Int64
		b.SetParallelism(64 / max(1, min(64, numCPU())))
		b.RunParallel(func(pb *testing.PB) {
			n := int(last.Add(1)) % 64
			for pb.Next() {
				lock(b, n)
			}
		})
	}
	b.Run("floor", func(b *testing.B) {
		dir := b.TempDir()
		run(b, func(b *testing.B, n int) { lockOnce(b, filepath.Join(dir, strconv.Itoa(n))) })
	})
	b.Run("hasp", func(b *testing.B) {
		c := testkit.Client(b, "file://"+storeDir(b))
		run(b, func(b *testing.B, n int) { lockAndRelease(b, c.Mutex("name-"+strconv.Itoa(n))) })
	})
}

func numCPU() int {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return 1
	}
	return set.Count()
}

// monotonic is a clock that all processes share.
func monotonic() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return ts.Nano()
}

// turnsJob locks and unlocks as often as told, holding for a millisecond, and prints when
// it acquired and when it began to release.
func turnsJob(j job) error {
	c, err := hasp.Open(context.Background(), "file://"+j.Dir)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	var word string
	if _, err := fmt.Scanln(&word); err != nil {
		return err
	}
	out := make([]string, 0, j.Times)
	for range j.Times {
		l, err := c.Mutex(j.Name).Lock(context.Background())
		if err != nil {
			return err
		}
		got := monotonic()
		time.Sleep(time.Millisecond)
		left := monotonic()
		if err := l.Release(context.Background()); err != nil {
			return err
		}
		out = append(out, fmt.Sprint(l.Token(), got, left))
	}
	fmt.Println(strings.Join(out, ";"))
	return c.Close()
}

// echoJob answers each byte of its input with one.
func echoJob(job) error {
	b := make([]byte, 1)
	for {
		if _, err := os.Stdin.Read(b); err != nil {
			return nil
		}
		if _, err := os.Stdout.Write(b); err != nil {
			return err
		}
	}
}

// What passes between the beginning of a release in one process and the return of Lock in
// the next, with so many processes in the queue. The floor is a byte through a pipe from
// one process to another that waits for it, a half of the way there and back.
func BenchmarkHandover(b *testing.B) {
	b.Run("floor", benchmarkPipe)
	for _, n := range []int{2, 8, 64, 512} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			dir := storeDir(b)
			times := max(b.N/n, 4)
			var all []*child
			for range n {
				all = append(all, start(b, job{Do: "turns", Dir: dir, Name: "name", Times: times}))
			}
			for _, c := range all {
				c.must("ready")
			}
			b.ResetTimer()
			for _, c := range all {
				fmt.Fprintln(c.in, "go")
			}
			var turns [][3]int64
			for _, c := range all {
				for line := range strings.SplitSeq(c.says(), ";") {
					var t [3]int64
					if _, err := fmt.Sscan(line, &t[0], &t[1], &t[2]); err != nil {
						b.Fatalf("%q: %v", line, err)
					}
					turns = append(turns, t)
				}
			}
			b.StopTimer()
			reportGaps(b, turns)
		})
	}
}

// reportGaps sorts turns by token, which is the order of the queue.
func reportGaps(b *testing.B, turns [][3]int64) {
	slices.SortFunc(turns, func(x, y [3]int64) int { return int(x[0] - y[0]) })
	var gaps []int64
	inversions := 0
	for i := 1; i < len(turns); i++ {
		if turns[i][1] < turns[i-1][2] {
			inversions++
		}
		gaps = append(gaps, turns[i][1]-turns[i-1][2])
	}
	slices.Sort(gaps)
	b.ReportMetric(0, "ns/op") // the holding is not what is measured
	b.ReportMetric(float64(gaps[len(gaps)/2])/1e3, "us-p50")
	b.ReportMetric(float64(gaps[len(gaps)*99/100])/1e3, "us-p99")
	b.ReportMetric(float64(inversions), "inversions")
}

func benchmarkPipe(b *testing.B) {
	r, w := startEcho(b)
	buf := make([]byte, 1)
	var gaps []int64
	for b.Loop() {
		time.Sleep(time.Millisecond) // the other one sleeps by then, as a waiter does
		began := monotonic()
		if _, err := w.Write(buf); err != nil {
			b.Fatal(err)
		}
		if _, err := r.Read(buf); err != nil {
			b.Fatal(err)
		}
		gaps = append(gaps, (monotonic()-began)/2)
	}
	slices.Sort(gaps)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(gaps[len(gaps)/2])/1e3, "us-p50")
	b.ReportMetric(float64(gaps[len(gaps)*99/100])/1e3, "us-p99")
}

// startEcho starts a process of echoJob and returns what to read from and to write to.
func startEcho(b *testing.B) (io.Reader, io.Writer) {
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), childEnv+`={"Do":"echo"}`)
	r, err := c.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	w, err := c.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := c.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		w.Close()
		c.Wait()
	})
	return r, w
}

// waitJob waits for a name until it is killed.
func waitJob(j job) error {
	c, err := hasp.Open(context.Background(), "file://"+j.Dir, hasp.WithObserver(testkit.Observer(func(e hasp.Event) {
		if e.Kind == hasp.EventWaiting {
			fmt.Println("waits")
		}
	})))
	if err != nil {
		return err
	}
	_, err = c.Mutex(j.Name).Lock(context.Background())
	return err
}

// What 512 waiting processes cost while nothing happens, in per cent of a core.
func BenchmarkWaiting512(b *testing.B) {
	dir := storeDir(b)
	l, err := testkit.Client(b, "file://"+dir).Mutex("name").Lock(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	var all []*child
	for range 512 {
		c := start(b, job{Do: "wait", Dir: dir, Name: "name"})
		c.must("waits")
		all = append(all, c)
	}
	time.Sleep(5 * time.Second) // the runtimes' own start
	const span = 30 * time.Second
	for b.Loop() {
		before := cpuTime(b, all)
		time.Sleep(span)
		b.ReportMetric(100*float64(cpuTime(b, all)-before)/float64(span), "%core")
	}
	if !l.Held() {
		b.Fatal("lost")
	}
}

// cpuTime sums what the threads of processes have run.
func cpuTime(b *testing.B, all []*child) (sum time.Duration) {
	for _, c := range all {
		files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", c.Process.Pid))
		if err != nil || len(files) == 0 {
			b.Fatalf("schedstat of %d: %v", c.Process.Pid, err)
		}
		for _, file := range files {
			s, err := os.ReadFile(file)
			if err != nil {
				continue // a thread that has just ended
			}
			ns, _, _ := strings.Cut(string(s), " ")
			n, err := strconv.ParseInt(ns, 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			sum += time.Duration(n)
		}
	}
	return sum
}
