package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"time"
)

// turn is one contender's holding, in nanoseconds of the clock that all processes share.
type turn struct {
	Who   int   `json:"w"`
	Asked int64 `json:"a"`
	Got   int64 `json:"g"`
	Left  int64 `json:"l"` // when its release began
}

// crowdOf is a scenario of n contenders, each with its own client, spread over worker
// processes. The gap is from the beginning of a release to the return of the next
// acquisition, by any contender. Contestants that are told their turns are in one process, as
// they are told there; that flatters the floor.
func crowdOf(n int) func(ctx context.Context, m *match) figures {
	return func(ctx context.Context, m *match) figures {
		f, err := crowd(ctx, m, n)
		if err != nil {
			return figures{Error: err.Error()}
		}
		return f
	}
}

func crowd(ctx context.Context, m *match, n int) (fig figures, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel() // which kills the workers
	procs := min(n/2, 8)
	if m.who.told {
		procs = 1
	}
	var workers []*worker
	for i := range procs {
		w, err := startWorker(ctx, m, job{
			Store: m.store.name, Who: m.who.name, Endpoint: m.endpoint, First: i * n / procs, Contenders: n / procs,
			Name: m.name("s3-"+strconv.Itoa(n), 0),
		})
		if err != nil {
			return fig, err
		}
		defer w.end()
		workers = append(workers, w)
	}
	for _, w := range workers {
		if err := w.ready(); err != nil {
			return fig, err
		}
	}
	// Each contender has had a chance to enter the queue before counting begins, or where turns are
	// told, to use its connection. Of 8 and 64 each gets several turns; of 512, on a slow store, one.
	each := 6 * time.Millisecond
	if m.who.told || m.store.quick {
		each /= 2
	}
	warm := m.lasts(400*time.Millisecond + time.Duration(n)*each)
	span := m.lasts(time.Second + time.Duration(3*n)*time.Millisecond)
	from := now() + int64(50*time.Millisecond)
	for _, w := range workers {
		if err := w.begin(from, from+int64(warm+span+unseen)); err != nil {
			return fig, err
		}
	}
	time.Sleep(time.Duration(from-now()) + warm)
	began := now()
	counted := m.measure(func() (int, error) {
		time.Sleep(span)
		return 1, nil
	})
	ended := now()
	if counted.Error != "" {
		return fig, fmt.Errorf("%s", counted.Error)
	}
	var all []turn
	var cpu time.Duration
	for _, w := range workers {
		r, err := w.result()
		if err != nil {
			return fig, err
		}
		all, cpu = append(all, r.Turns...), cpu+r.CPU
	}
	return evaluate(all, n, began, ended, counted.Commands, cpu), nil
}

// unseen is for how long the contenders go on when counting has ended: those who leave the queue at the end, or are
// cancelled in it, ask the store for more than one that is served.
const unseen = 500 * time.Millisecond

// orderSlack is by how much a contender may have asked earlier without being out of order: requests
// travel, and processes are scheduled.
const orderSlack = int64(10 * time.Millisecond)

// evaluate makes figures of the turns that began in the time that was measured.
func evaluate(all []turn, n int, began, ended int64, commands float64, cpu time.Duration) (fig figures) {
	slices.SortFunc(all, func(a, b turn) int { return int(a.Got - b.Got) })
	var gaps []time.Duration
	each := make([]int, n)
	for i, t := range all {
		if t.Got < began || t.Got > ended {
			continue
		}
		fig.Acquisitions++
		each[t.Who]++
		if i > 0 {
			gaps = append(gaps, time.Duration(t.Got-all[i-1].Left))
		}
		for _, later := range all[i+1:] {
			if later.Asked < t.Asked-orderSlack {
				fig.Inversions++
				break
			}
		}
	}
	if fig.Acquisitions == 0 {
		return figures{Error: "nothing was acquired"}
	}
	fig.timings(gaps)
	fig.shares(each)
	fig.Rate = float64(fig.Acquisitions) / time.Duration(ended-began).Seconds()
	fig.Commands = commands / float64(fig.Acquisitions)
	fig.CPU = float64(cpu.Microseconds()) / float64(len(all))
	return fig
}

// worker is a process with some of the contenders.
type worker struct {
	cmd *exec.Cmd
	in  *json.Encoder
	out *bufio.Scanner
}

func startWorker(ctx context.Context, m *match, j job) (*worker, error) {
	text, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, os.Args[0], "-worker", string(text))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 64<<20)
	return &worker{cmd, json.NewEncoder(in), lines}, cmd.Start()
}

// receive reads one line of the worker.
func (w *worker) receive(v any) error {
	if !w.out.Scan() {
		return fmt.Errorf("a worker has ended: %v", w.out.Err())
	}
	return json.Unmarshal(w.out.Bytes(), v)
}

func (w *worker) ready() error {
	var r result
	if err := w.receive(&r); err != nil {
		return err
	}
	if r.Error != "" {
		return fmt.Errorf("%s", r.Error)
	}
	return nil
}

func (w *worker) begin(from, until int64) error { return w.in.Encode([2]int64{from, until}) }

func (w *worker) result() (r result, err error) {
	err = w.receive(&r)
	if err == nil && r.Error != "" {
		err = fmt.Errorf("%s", r.Error)
	}
	return r, err
}

func (w *worker) end() {
	_ = w.cmd.Process.Kill() // it may still wait for a lock that is never released
	_ = w.cmd.Wait()
}
