package history

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Recorder collects operations. All methods may be called at once from any goroutine.
type Recorder struct {
	prefix string // makes IDs unique among the processes that write one file
	last   atomic.Uint64
	file   *os.File // nil: in memory

	mu     sync.Mutex
	events []event // if file is nil
	err    error   // the first of writing
}

// New returns a recorder that keeps everything in memory.
func New() *Recorder { return &Recorder{prefix: "op"} }

// Open returns a recorder that appends to a file, one line for each event. Any number of
// processes may have the same file open.
//
// A line is one write to a descriptor in append mode: the kernel puts it at the end, and
// it survives kill -9 of the writer. Nothing is buffered for that reason. The line break
// comes first, so that a line cut short by the kill does not spoil the next writer's.
func Open(path string) (*Recorder, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	// No two live processes share a pid, and the clock tells a reused one apart.
	prefix := fmt.Sprintf("%d.%x", os.Getpid(), Now())
	return &Recorder{prefix: prefix, file: f}, nil
}

// History returns what was recorded so far: with Open, all that the file has, other
// processes' operations included.
func (r *Recorder) History() (History, error) {
	r.mu.Lock()
	err, events := r.err, slices.Clone(r.events)
	r.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if r.file != nil {
		return Load(r.file.Name())
	}
	return fold(events)
}

// Err is the first error of any write.
func (r *Recorder) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Close closes the file. It returns the first error of any write: a record with a gap
// could acquit a broken lock.
func (r *Recorder) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file == nil {
		return r.err
	}
	return errors.Join(r.err, r.file.Close())
}

func (r *Recorder) record(e event) {
	if r.file == nil {
		r.mu.Lock()
		r.events = append(r.events, e)
		r.mu.Unlock()
		return
	}
	line, err := json.Marshal(e)
	if err == nil {
		_, err = r.file.Write(append([]byte{'\n'}, line...))
	}
	if err != nil {
		r.mu.Lock()
		if r.err == nil {
			r.err = err
		}
		r.mu.Unlock()
	}
}

// Acquire records that client is about to ask for name. Call it right before the lock's
// own acquire, and the returned Attempt's methods right after each step.
func (r *Recorder) Acquire(client, name string, c Claim) *Attempt {
	a := &Attempt{rec: r, id: r.prefix + "-" + strconv.FormatUint(r.last.Add(1), 10)}
	a.record(event{What: called, Client: client, Name: name, Units: c.Units, Capacity: c.Capacity})
	return a
}

// Attempt is one operation being recorded. Its methods may be called from several
// goroutines: the owner's and a watcher's.
type Attempt struct {
	rec *Recorder
	id  string

	over atomic.Bool // lost or being released: what Held() says no about is known
}

func (a *Attempt) record(e event) { a.recordAt(Now(), e) }

func (a *Attempt) recordAt(t Time, e event) {
	e.Op, e.At = a.id, t
	a.rec.record(e)
}

// Waiting records that the store has put the request into the queue.
func (a *Attempt) Waiting() { a.record(event{What: waiting}) }

// Requeued records that the place in the queue was lost, and that the client asks again.
func (a *Attempt) Requeued() { a.record(event{What: requeued}) }

// Granted records that acquire returned the lock. token is 0 if the store gives none;
// seq is the place in the queue, or 0 if the token is that.
func (a *Attempt) Granted(token, seq uint64) {
	a.record(event{What: answered, Outcome: Granted, Token: token, Seq: seq})
}

// Busy records that acquire was refused because another client has the lock.
func (a *Attempt) Busy() { a.record(event{What: answered, Outcome: Busy}) }

// Failed records that acquire certainly got nothing and left nothing behind. A wait that
// was cancelled is Unknown rather: its entry may be there for a while.
func (a *Attempt) Failed(err error) {
	a.record(event{What: answered, Outcome: Failed, Note: text(err)})
}

// Unknown records that it is unknown whether acquire got the lock.
func (a *Attempt) Unknown(err error) {
	a.record(event{What: answered, Outcome: Unknown, Note: text(err)})
}

// Held asks whether the lock is still held, records the answer and returns it. A no that
// is not news is not recorded; a yes always is, for it may be one too many.
func (a *Attempt) Held(ask func() bool) bool {
	before := Now()
	if ask() {
		a.recordAt(before, event{What: held})
		return true
	}
	a.lose(true)
	return false
}

// Lost records that the client learned of the loss, for a client that does not ask Held. The stamp
// then counts as the end of its belief: record it where no pause can come between.
func (a *Attempt) Lost() { a.lose(false) }

func (a *Attempt) lose(asked bool) {
	if !a.over.Swap(true) {
		a.record(event{What: lost, Asked: asked})
	}
}

// Watch asks held at intervals and records the answers (each yes is a line in the file), until it
// says no, or gone closes, or stop is called, which waits for the last question. After gone has
// closed it asks once more: a yes then is a violation that Beliefs finds.
func (a *Attempt) Watch(held func() bool, gone <-chan struct{}, every time.Duration) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for a.Held(held) {
			select {
			case <-tick.C:
				continue
			case <-gone:
			case <-quit:
			}
			select { // a loss counts also if stop was called at the same moment
			case <-gone:
				a.lose(true)
				a.Held(held)
			default:
			}
			return
		}
	}()
	return sync.OnceFunc(func() {
		close(quit)
		<-done
	})
}

// Releasing records that release is about to be called. An operation has one release: of
// one that is retried, record the beginning of the first try and the outcome of the last.
func (a *Attempt) Releasing() {
	a.over.Store(true)
	a.record(event{What: releasing})
}

// Released records that release reported success.
func (a *Attempt) Released() { a.record(event{What: ended, Outcome: Released}) }

// NotHeld records that release reported that the lock had been lost.
func (a *Attempt) NotHeld(err error) {
	a.record(event{What: ended, Outcome: NotHeld, Note: text(err)})
}

// ReleaseUnknown records that it is unknown whether release took effect.
func (a *Attempt) ReleaseUnknown(err error) {
	a.record(event{What: ended, Outcome: Unknown, Note: text(err)})
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
