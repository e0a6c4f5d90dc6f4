//go:build unix

package torture

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/history"
)

// run is one run, from the first look at the store to the verdict.
type run struct {
	Config
	client  *hasp.Client // past all proxies; nil if an adapter is the lock under test
	ttl     time.Duration
	dir     string // of the record and the registers
	names   []string
	control string
	unused  string // a name that no worker takes
	clock   string // another; of trial
	starter *starter
	slots   []*slot
	began   history.Time
	broken  <-chan struct{} // closed when there is nothing more to do

	serving sync.Mutex // held by the fault that disturbs the server

	mu          sync.Mutex
	faults      []Fault
	deaths      []string // of workers, that no fault of ours has caused
	ends        int      // of adapters, by themselves
	lastEnd     string   // why
	killedAtEnd int      // workers that had to be killed at the end
	ending      bool
	fail        context.CancelCauseFunc
}

// slot is the place of one worker. A worker that has died is replaced, behind the same proxies.
type slot struct {
	index int
	net   faultnet.Network
	url   string

	disturbed sync.Mutex // held by the fault that disturbs it

	// Guarded by run.mu.
	proc          *process
	lives         int
	killedByFault bool // by a fault
}

// Run tortures the store, and returns what it has seen. Its error says why there is nothing to
// judge: the store is out of reach, a worker cannot record, ctx has ended. Nothing is left running.
func Run(ctx context.Context, c Config) (_ *Verdict, err error) {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	r := &run{Config: c, fail: fail, broken: ctx.Done(), starter: newStarter()}
	defer r.starter.close()
	if err := r.open(ctx); err != nil {
		return nil, err
	}
	defer r.close()
	id := "hasp-torture-" + strings.ToLower(rand.Text()[:8]) + "-"
	for i := range r.Names {
		r.names = append(r.names, fmt.Sprint(id, i+1))
	}
	r.control, r.unused, r.clock = id+"control", id+"probe", id+"clock"
	if err := r.probe(ctx, r.unused); err != nil {
		return nil, err
	}
	if slices.Contains(r.Faults, ServerForget) {
		if err := r.Server.Save(); err != nil {
			return nil, err
		}
	}
	if r.dir, err = os.MkdirTemp("", "hasp-torture-"); err != nil {
		return nil, fmt.Errorf("make a place for the record: %w", err)
	}
	keep := false
	defer func() {
		if !keep {
			_ = os.RemoveAll(r.dir)
		}
	}()
	noting, end := context.WithCancel(ctx)
	noted := make(chan error)
	go func() { noted <- noteStalls(noting, r.dir, "", r.ttl) }()
	err = r.disturb(ctx)
	r.stopWorkers()
	end()
	if err = cmp.Or(context.Cause(ctx), err, <-noted); err != nil {
		return nil, err
	}
	left := r.settle(ctx)
	var tried *trial
	if r.Adapter != "" && len(left.stuck) == 0 {
		tried = r.try(ctx, r.unused, r.clock)
	}
	v, err := r.judge(left, tried)
	if err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	if keep = v.Broken != ""; keep {
		v.Record = r.dir
	}
	return v, nil
}

// probe takes a lock once, to learn the TTL that the store grants: a fault that is to lose a lock
// has to outlast it.
func (r *run) probe(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, openBound)
	defer cancel()
	if r.ttl = r.TTL; r.Adapter != "" {
		return r.takeByAdapter(ctx, name)
	}
	for {
		err := r.probeOnce(ctx, name)
		// A store that makes its tables, on a busy machine, may take longer than the TTL. Then
		// nothing is known of it.
		if !errors.Is(err, hasp.ErrUnknown) && !errors.Is(err, hasp.ErrLost) || ctx.Err() != nil {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (r *run) probeOnce(ctx context.Context, name string) error {
	l, err := r.client.Mutex(name).Lock(ctx)
	if err != nil {
		return err
	}
	if deadline := l.Deadline(); !deadline.IsZero() {
		// Trust ends a hundredth and the safety margin, a tenth, before the TTL does.
		r.ttl = max(r.ttl, time.Duration(float64(time.Until(deadline))/0.89))
	}
	return l.Release(ctx)
}

// disturb starts the workers and carries out the plan.
func (r *run) disturb(ctx context.Context) error {
	for i := range r.Processes {
		s := &slot{index: i, url: r.Store}
		r.slots = append(r.slots, s)
		if Disturbable(r.Store) == nil {
			var err error
			if s.net, s.url, err = proxies(r.Store); err != nil {
				return err
			}
		}
		if err := r.spawn(s); err != nil {
			return err
		}
	}
	for _, s := range r.slots {
		if err := r.awaitReady(ctx, s.proc); err != nil {
			return err
		}
		go r.replace(s)
	}
	r.began = history.Now()
	over, cancel := context.WithTimeout(ctx, r.For)
	defer cancel()
	go r.tell(over)
	r.carryOut(over, Plan(r.Config))
	return nil
}

func (r *run) awaitReady(ctx context.Context, p *process) error {
	select {
	case <-p.ready:
		return nil
	case <-p.exited:
		return fmt.Errorf("a worker did not begin: %s", p.why())
	case <-time.After(openBound):
		return errors.New("a worker did not reach the store in time")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (r *run) spawn(s *slot) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ending {
		return nil
	}
	s.lives++
	p, err := r.starter.start(r.Worker, task{
		Store: s.url, Ask: r.TTL, TTL: r.ttl, Client: fmt.Sprintf("process %d.%d", s.index, s.lives),
		Names: r.names, Control: r.control, LockFile: r.lockFile(), Dir: r.dir, Adapter: r.Adapter,
		Patient: slices.ContainsFunc(r.Faults, Kind.OfServer),
	}, r.adapterEnded)
	if p != nil {
		s.proc, s.killedByFault = p, false
	}
	return err
}

// WorkerError is about a worker that cannot work, though the store can be reached: it cannot keep
// its record, say.
type WorkerError struct{ text string }

func (e *WorkerError) Error() string { return e.text }

// fewLives is how often a worker may end without being told to.
const fewLives = 3

// replace starts a worker again that has died, until the run ends.
func (r *run) replace(s *slot) {
	for died := 0; ; {
		r.mu.Lock()
		p := s.proc
		r.mu.Unlock()
		<-p.exited
		r.mu.Lock()
		ending, killedByFault := r.ending, s.killedByFault
		if !ending && !killedByFault {
			r.deaths = append(r.deaths, p.client+": "+p.why())
			died++
		}
		r.mu.Unlock()
		switch {
		case ending:
			return
		case died == fewLives:
			r.fail(&WorkerError{"a worker ends again and again: " + p.why()})
			return
		}
		if err := r.spawn(s); err != nil {
			r.fail(err)
			return
		}
	}
}

// stopWorkers heals the networks and ends the workers, all at once.
func (r *run) stopWorkers() {
	r.mu.Lock()
	r.ending = true
	r.mu.Unlock()
	var all sync.WaitGroup
	for _, s := range r.slots {
		s.net.Heal()
		if s.proc == nil {
			continue
		}
		all.Go(func() {
			switch byItself := s.proc.end(2*r.ttl + 10*time.Second); {
			case !byItself:
				r.mu.Lock()
				r.killedAtEnd++
				r.mu.Unlock()
			case s.proc.status.ExitStatus() > 0: // its record may have gaps: they could acquit a broken lock
				r.fail(&WorkerError{"a worker could not do its work: " + s.proc.why()})
			}
		})
	}
	all.Wait()
	for _, s := range r.slots {
		s.net.Close()
	}
}

// tell says now and then how far the run is.
func (r *run) tell(ctx context.Context) {
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			r.mu.Lock()
			n := len(r.faults)
			r.mu.Unlock()
			r.Say(fmt.Sprintf("%s of %s, %d faults so far", time.Duration(history.Now()-r.began).Round(time.Second), r.For, n))
		case <-ctx.Done():
			return
		}
	}
}
