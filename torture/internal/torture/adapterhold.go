//go:build unix

package torture

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/history"
	"github.com/hasplock/hasp/internal/recordedhold"
)

// adapterSlot is the place of one adapter: that of a worker for one name. An adapter that has ended
// is replaced.
type adapterSlot struct {
	task    adapterTask
	name    string
	starter *starter
	ended   func(why error) // is told of each end
	broken  func(error)     // is told of what ends the run
	late    func(Stall)     // is told of each answer that took long
	patient bool            // the server may be away: then adapters end, and are replaced, until it is back

	now    *adapter
	barren int // how many have ended in a row without a grant
}

// mostBarren is how many adapters may end one after the other before any of them was granted the
// lock. Faults make some end by themselves.
const mostBarren = 10

// lock waits for the lock until quit ends. What was asked for by then is waited for a little
// longer, to give it back: a request cannot be taken back.
func (s *adapterSlot) lock(quit context.Context) (recordedhold.Lease, error) {
	if s.now == nil {
		a, err := startAdapter(quit, s.starter, s.task, false)
		if err != nil {
			return nil, s.failed(quit, err)
		}
		s.now = a
	}
	asking, cancel := context.WithCancelCause(context.WithoutCancel(quit))
	defer cancel(nil)
	defer context.AfterFunc(quit, func() {
		time.AfterFunc(s.task.TTL+mostWaitedForEnd, func() { cancel(context.Cause(quit)) })
	})()
	line, err := s.now.ask(asking, forever, "lock", s.name)
	var token uint64
	if err == nil {
		token, err = grant(line)
	}
	if err != nil {
		return nil, s.failed(quit, err)
	}
	s.barren = 0
	s.now.mu.Lock()
	defer s.now.mu.Unlock()
	return &foreignLease{adapterSlot: s, a: s.now, token: token, held: s.now.held}, nil
}

// forever is longer than any wait for a lock.
const forever = 1000 * time.Hour

// failed notes why an adapter could not be used, and has it replaced where it has ended.
func (s *adapterSlot) failed(quit context.Context, err error) error {
	var refused refusal
	switch {
	case errors.As(err, &refused), quit.Err() != nil:
		return err
	case !errors.Is(err, errEnded):
		s.broken(err)
		return err
	}
	s.now = nil
	s.ended(err)
	if s.barren++; s.barren == mostBarren && !s.patient {
		s.broken(fmt.Errorf("%d adapters in a row have ended before they were granted %q; the last: %w", s.barren, s.name, err))
	}
	return err
}

func (s *adapterSlot) close() {
	if s.now != nil {
		s.now.end()
	}
}

// refusal is an "error: TEXT" from the adapter.
type refusal struct{ text string }

func (r refusal) Error() string { return "the adapter says " + strconv.Quote(r.text) }

func unexpected(line, command, want string) error {
	if is(line, "error:") {
		return refusal{line}
	}
	return fmt.Errorf("the adapter answers %q to %q, which must be answered by %s", line, command, want)
}

// grant reads "ok [MICROS [TOKEN]]". The time is for interop; this package's clock is another.
func grant(line string) (token uint64, err error) {
	words := strings.Fields(line)
	if !is(line, "ok") || len(words) > 3 {
		return 0, unexpected(line, "lock", `"ok"`)
	}
	if len(words) < 3 {
		return 0, nil
	}
	if token, err = strconv.ParseUint(words[2], 10, 64); err != nil || token == 0 {
		return 0, fmt.Errorf("the adapter answers %q, in which %q is to be a fencing token, a number from 1", line, words[2])
	}
	return token, nil
}

// foreignLease is a lock that an adapter holds. Its methods may be called from several goroutines.
type foreignLease struct {
	adapterSlot *adapterSlot
	a           *adapter
	token       uint64
	held        context.Context

	mu   sync.Mutex // held during a check
	told bool       // that it is lost
}

func (l *foreignLease) Token() uint64            { return l.token }
func (l *foreignLease) Context() context.Context { return l.held }

// patience is for the answers that come at once unless a fault delays them: it outlasts the
// longest.
func (l *foreignLease) patience() time.Duration { return 3*l.adapterSlot.task.TTL + 30*time.Second }

// ask asks for what comes at once. An adapter that takes a sixth of the TTL for it stands still, as
// a process that noteStalls notes. It may have done so before it was asked, too, when it was late
// to say that it was granted the lock: an answer to lock may take any time.
func (l *foreignLease) ask(command string) (string, error) {
	ttl, asked := l.adapterSlot.task.TTL, history.Now()
	line, err := l.a.ask(context.Background(), l.patience(), command, "")
	if answered := history.Now(); time.Duration(answered-asked) > ttl/6 {
		l.adapterSlot.late(Stall{From: asked - history.Time(ttl), To: answered, Answer: true})
	}
	return line, err
}

// Held asks the adapter. Where its library does not say, the answer is yes, as its user would
// believe. A check that fails is made again for up to two TTLs, in which the holder does nothing;
// then the holder gives up. It does so for good: no user asks a library that has said that the lock
// is lost.
func (l *foreignLease) Held() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.told {
		return false
	}
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		line, err := l.ask("check")
		switch {
		case err == nil && (is(line, "held") || is(line, "none")):
			return true
		case err == nil && is(line, "error:") && time.Since(began) < 2*l.adapterSlot.task.TTL:
			continue
		case err == nil && !is(line, "error:") && !is(line, "lost"):
			l.adapterSlot.broken(unexpected(line, "check", `"held", "lost" or "none"`))
		case err != nil && !errors.Is(err, errEnded):
			l.adapterSlot.broken(err)
		}
		l.told = true
		return false
	}
}

// Release gives the lock back. Of a lock that is known to be lost, success says nothing: there was
// nothing to release.
func (l *foreignLease) Release(context.Context) error {
	line, err := l.ask("unlock")
	l.mu.Lock()
	told := l.told
	l.mu.Unlock()
	switch {
	case err != nil:
		return l.adapterSlot.failed(context.Background(), err)
	case is(line, "lost"), is(line, "ok") && told:
		return fmt.Errorf("%w: the adapter says %q", hasp.ErrLost, line)
	case is(line, "ok"):
		return nil
	}
	err = unexpected(line, "unlock", `"ok" or "lost"`)
	if !errors.As(err, new(refusal)) {
		l.adapterSlot.broken(err)
	}
	return err
}
