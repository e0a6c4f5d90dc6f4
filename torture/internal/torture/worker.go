//go:build unix

package torture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/internal/history"
	"github.com/hasplock/hasp/internal/recordedhold"
)

// task is the first line of a worker's input: what it is to do. It has the store's URL, which may
// have a password and so is in no argument.
type task struct {
	Store    string        `json:"store"` // through the worker's proxies
	Ask      time.Duration `json:"ask_ns"`
	TTL      time.Duration `json:"ttl_ns"` // as the store grants it
	Client   string        `json:"client"`
	Names    []string      `json:"names"`
	Control  string        `json:"control"`
	LockFile bool          `json:"lock_file"` // the control is a lock file with a time
	Dir      string        `json:"dir"`
	Adapter  string        `json:"adapter,omitempty"` // the lock under test, if that is not hasp's
	Patient  bool          `json:"patient,omitempty"` // the server may be away for a while
}

// order is every other line of a worker's input.
type order struct {
	Linger string        `json:"linger,omitempty"` // hold this name long, the next time
	For    time.Duration `json:"for_ns,omitempty"`
	Finish string        `json:"finish,omitempty"` // end that hold now, or have it not begin
}

// reply is a line of a worker's output.
type reply struct {
	Ready   bool   `json:"ready,omitempty"`
	Lingers string `json:"lingers,omitempty"` // it holds the name, and goes on holding
	Ended   string `json:"ended,omitempty"`   // an adapter has, by itself, for this reason
}

type worker struct {
	task
	client       *hasp.Client
	adapterSlots map[string]*adapterSlot // of adapters, by name
	rec          *history.Recorder
	quit         context.Context // ends when the input does

	mu     sync.Mutex
	out    *json.Encoder
	linger map[string]time.Duration    // ordered, not begun
	finish map[string]func()           // ends a long hold
	asking map[string]*history.Attempt // the acquisition under way
	failed error                       // the first; the worker then ends
	fail   context.CancelFunc
}

// Worker is a worker process, from its input to its end. It ends when its input does; signals
// that a terminal sends to a whole group are for the coordinator alone.
func Worker(in io.Reader, out io.Writer, open Opener) error {
	w := &worker{out: json.NewEncoder(out), linger: map[string]time.Duration{}, finish: map[string]func(){}, asking: map[string]*history.Attempt{}}
	orders := json.NewDecoder(in)
	if err := orders.Decode(&w.task); err != nil {
		return fmt.Errorf("a worker is started by hasp-torture only: %w", err)
	}
	w.quit, w.fail = context.WithCancel(context.Background())
	defer w.fail()
	var err error
	if w.rec, err = history.Open(filepath.Join(w.Dir, w.Client+".history")); err != nil {
		return err
	}
	if err := w.open(open); err != nil {
		return err
	}
	w.say(reply{Ready: true})
	go w.readOrders(orders)
	var all sync.WaitGroup
	all.Go(func() {
		if err := noteStalls(w.quit, w.Dir, w.Client, w.TTL); err != nil {
			w.broken(err)
		}
	})
	for _, name := range append([]string{w.Control}, w.Names...) {
		all.Go(func() { w.contend(name) })
	}
	all.Wait()
	if w.client != nil {
		_ = w.client.Close() // what it leaves in the store is looked for at the end
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return errors.Join(w.failed, w.rec.Close())
}

func (w *worker) open(open Opener) (err error) {
	switch {
	case w.Adapter == "":
		opening, cancel := context.WithTimeout(w.quit, openBound)
		defer cancel()
		for {
			w.client, err = open(opening, w.Store, hasp.WithTTL(w.Ask), hasp.WithObserver(w))
			if err == nil || !w.Patient || opening.Err() != nil {
				return err
			}
			w.wait(opening, 50*time.Millisecond)
		}
	case w.LockFile:
		return w.useAdapters(w.Names)
	}
	return w.useAdapters(append([]string{w.Control}, w.Names...))
}

// openBound is how long a worker may take to connect: its network may be disturbed then.
const openBound = time.Minute

func (w *worker) say(r reply) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.out.Encode(r) // without a coordinator the input ends, too
}

// broken ends the worker: a record with a gap could acquit a broken lock.
func (w *worker) broken(err error) {
	w.mu.Lock()
	w.failed = errors.Join(w.failed, err)
	w.mu.Unlock()
	w.fail()
}

func (w *worker) readOrders(orders *json.Decoder) {
	defer w.fail()
	for {
		var o order
		if orders.Decode(&o) != nil {
			return
		}
		w.mu.Lock()
		if o.Linger != "" {
			w.linger[o.Linger] = o.For
		}
		if end := w.finish[o.Finish]; end != nil {
			end()
		} else {
			delete(w.linger, o.Finish)
		}
		w.mu.Unlock()
	}
}

// Observe is called by the goroutine that acquires.
func (w *worker) Observe(e hasp.Event) {
	w.mu.Lock()
	op := w.asking[e.Name]
	w.mu.Unlock()
	switch {
	case op == nil:
	case e.Kind == hasp.EventWaiting:
		op.Waiting()
	case e.Kind == hasp.EventRequeued:
		op.Requeued()
	}
}

// contend takes and gives back one name until the worker ends. The pauses bound the load: at most
// a hundred acquisitions a second of a process for each name.
func (w *worker) contend(name string) {
	registers, err := w.registers(name)
	if err != nil {
		w.broken(err)
		return
	}
	h := recordedhold.Hold{
		Client: w.client, Who: w.Client, Name: name, TTL: max(w.TTL, 2*time.Second), Unchecked: name == w.Control,
		Asking: func(op *history.Attempt) {
			w.mu.Lock()
			w.asking[name] = op
			w.mu.Unlock()
		},
		Work: func(l recordedhold.Lease, op *history.Attempt) { w.work(name, l, op, registers) },
	}
	if s := w.adapterSlots[name]; s != nil {
		defer s.close()
		h.Lock = s.lock
	}
	if h.Unchecked && w.LockFile {
		h.Lock = func(ctx context.Context) (recordedhold.Lease, error) {
			return takeLockFile(ctx, filepath.Join(w.Dir, name+".lock"), w.TTL)
		}
	}
	for w.quit.Err() == nil {
		rest := rand.N(10 * time.Millisecond)
		if err := h.Run(w.quit, w.rec); err != nil {
			rest += 20 * time.Millisecond // the store is out of reach
		}
		if err := w.rec.Err(); err != nil {
			w.broken(err)
		}
		w.wait(w.quit, rest)
	}
}

func (w *worker) wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func (w *worker) registers(name string) (all []*register, err error) {
	for _, fenced := range []bool{false, true} {
		r, err := openRegister(w.Dir, name, fenced)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

// work is a holder's: it writes to the registers for a few milliseconds, or for as long as it was
// ordered to linger. Before each write it asks whether it still holds, but for the control.
func (w *worker) work(name string, l recordedhold.Lease, op *history.Attempt, registers []*register) {
	hold := 2*time.Millisecond + rand.N(8*time.Millisecond)
	ctx, end := context.WithCancel(w.quit)
	defer end()
	w.mu.Lock()
	long, lingers := w.linger[name]
	delete(w.linger, name)
	if lingers {
		hold, w.finish[name] = long, end
	}
	w.mu.Unlock()
	if lingers {
		w.say(reply{Lingers: name})
		defer func() {
			w.mu.Lock()
			delete(w.finish, name)
			w.mu.Unlock()
		}()
	}
	// A holder writes less and less often: with many names the writes would be most of the load.
	pause := time.Millisecond
	for until := time.Now().Add(hold); ctx.Err() == nil && time.Now().Before(until); w.wait(ctx, pause) {
		if name != w.Control && !op.Held(l.Held) {
			return
		}
		if err := w.update(l.Token(), registers); err != nil {
			w.broken(err)
			return
		}
		pause = min(pause*5/4, 4*time.Millisecond)
	}
}

// update adds one to each register. Between a read and its write is the moment in which a pause
// does harm.
func (w *worker) update(token uint64, registers []*register) error {
	versions := make([]uint64, len(registers))
	stale := make([]bool, len(registers))
	for i, r := range registers {
		if r.fenced && token == 0 {
			stale[i] = true // the lock gives no token: its writes cannot be fenced
			continue
		}
		v, err := r.read(w.Client, token)
		if stale[i] = errors.Is(err, fencing.ErrStale); err != nil && !stale[i] {
			return err
		}
		versions[i] = v
	}
	time.Sleep(rand.N(2 * time.Millisecond))
	for i, r := range registers {
		if stale[i] {
			continue
		}
		if err := r.write(w.Client, token, versions[i]); err != nil && !errors.Is(err, fencing.ErrStale) {
			return err
		}
	}
	return nil
}

// Stall is a time in which a worker did not run, for any reason.
type Stall struct {
	Client string       `json:"client"` // "": the coordinator
	From   history.Time `json:"from"`
	To     history.Time `json:"to"`
	Answer bool         `json:"answer,omitempty"` // an adapter was late with one
}

// stalls is where all workers note them.
const stalls = "stalls.jsonl"

// noteStalls notes when the process did not run for a sixth of the TTL: it may have lost its place
// in a queue then, which is no fault of the lock. The coordinator's have no client: it is the
// machine that was busy, and what passes through the proxies was late.
func noteStalls(ctx context.Context, dir, client string, ttl time.Duration) error {
	tick := time.NewTicker(ttl / 30)
	defer tick.Stop()
	for last := history.Now(); ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		now := history.Now()
		if time.Duration(now-last) > ttl/6 {
			if err := appendLine(filepath.Join(dir, stalls), Stall{Client: client, From: last, To: now}); err != nil {
				return err
			}
		}
		last = now
	}
}
