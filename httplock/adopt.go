package httplock

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
)

// remaining are the held locks that are not adopted yet, each with a number in the next session.
func (s *session) remaining() (all []*ticket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tickets {
		if !t.held() || t.to.entry != "" {
			continue
		}
		if t.to.number == 0 {
			s.nextLast++
			t.to, t.toUnits = location{session: s.next, number: s.nextLast}, t.r.Units
		}
		all = append(all, t)
	}
	return all
}

// adoptAll has the next session adopt all that remain, and begins no more after an error: with many
// locks, each would wait for a dead host in its turn.
func (s *session) adoptAll(ctx context.Context) error {
	remaining := s.remaining()
	if err := s.renewNext(ctx); err != nil {
		return err
	}
	errs := make([]error, len(remaining))
	slots := make(chan struct{}, atOnce)
	var failed atomic.Bool
	var all sync.WaitGroup
	for i, t := range remaining {
		slots <- struct{}{}
		if failed.Load() {
			break
		}
		all.Go(func() {
			if errs[i] = s.adopt(ctx, t); errs[i] != nil {
				failed.Store(true)
			}
			<-slots
		})
	}
	all.Wait()
	if slices.ContainsFunc(errs, sessionGone) {
		s.giveUpNext()
		return errNextEnded
	}
	return errors.Join(errs...)
}

// adopt has the next session adopt one lock. An error is not about that lock: its loss is told.
//
// A lock that is not there with the units of before may have been made smaller by a request that
// the old server has done, without an answer that has counted: it is looked for a second time.
// Neither attempt can take another's entry, and a repeated one goes on where it was: by its number
// the server knows with which units it was made.
func (s *session) adopt(ctx context.Context, t *ticket) error {
	err := s.adoptOnce(ctx, t)
	if errors.Is(err, driver.ErrGone) && !sessionGone(err) && s.wantSmaller(t) {
		err = s.adoptOnce(ctx, t)
	}
	if err == nil || sessionGone(err) || !errors.Is(err, driver.ErrGone) {
		return err
	}
	s.mu.Lock()
	report := t.held() && !t.left
	t.loseLocked(err)
	s.mu.Unlock()
	if report {
		s.options.Gone(t.r.ID, err)
	}
	return nil
}

func (s *session) adoptOnce(ctx context.Context, t *ticket) error {
	s.mu.Lock()
	in := httpapi.AdoptLock{Acquire: t.requestLocked(), From: t.at.entry, Seq: t.token, FromSession: t.at.session, FromLock: t.at.number}
	in.Entry, in.Value, in.NoWait, in.Units = "", nil, false, t.toUnits
	to := t.to
	s.mu.Unlock()
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	var a httpapi.Lock
	err := s.b.call(ctx, request{method: http.MethodPost, path: "/v1/locks/" + strconv.FormatUint(to.number, 10) + "/adopt", session: to.session, body: in}, &a)
	switch {
	case err != nil:
		return err
	case a.State != httpapi.Held || a.Entry == "":
		return s.b.strange("says of an adoption that the lock is " + strconv.Quote(a.State))
	case a.Token != in.Seq:
		return fmt.Errorf("%w: another server has adopted something else", driver.ErrGone)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t.to.entry, t.r.Units = a.Entry, in.Units
	return nil
}

// wantSmaller reports that a lock may have other units than it was not found with, and has it be
// asked for with these. The number of the attempt before is used up.
func (s *session) wantSmaller(t *ticket) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !t.held() || t.smaller == 0 || t.smaller == t.toUnits {
		return false
	}
	s.nextLast++
	t.to.number, t.toUnits = s.nextLast, t.smaller
	return true
}

// giveUpNext gives the next session up: what it has adopted moves on from there.
func (s *session) giveUpNext() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tickets {
		if t.to.entry != "" {
			t.at = t.to
		}
		t.to = location{}
	}
	s.next = ""
}

// nextLasts notes what the next session was granted, counted from before it was asked.
func (s *session) nextLasts(sent time.Time, ms int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lasts = sent.Add(time.Duration(ms) * time.Millisecond)
}

// renewNext has the store grant the next session at least as long as the core trusts what is about
// to be in it.
//
// The store may count the next session's time from when that was opened, and so the time of all
// that it adopts. While the answer was on its way the old session could still be kept alive, and
// the core trusts what is held from then on, for longer than the next session lasts: a client that
// is cut off in the middle of the move would hold beside the next. Or the next server grants less
// than the one before. So where what has counted of the old session lasts longer, the next is
// renewed. What that grants is compared in its turn: it may be shorter, and have left out a lock
// that was adopted by an earlier attempt. Then nothing more moves yet: this attempt fails, and the
// next one renews again.
// Here, after remaining, no more can count if anything is held. If nothing is, what this session
// acquires next depends on it, and switchOver looks again.
//
// Rejected: to let no keep-alive count from the opening on, which needs no comparison. One opening
// that hangs would cost the locks that the old server still keeps alive.
func (s *session) renewNext(ctx context.Context) error {
	if !s.outlastsNext() {
		return nil
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	sent := time.Now()
	var a httpapi.Alive
	err := s.b.call(ctx, request{method: http.MethodPost, path: "/v1/session/keepalive", session: s.next}, &a)
	if sessionGone(err) {
		s.giveUpNext()
		return errNextEnded
	}
	if err == nil {
		_, err = valid(a.Valid)
	}
	if err != nil {
		return err
	}
	for _, l := range a.Late {
		a.Valid = min(a.Valid, l.Valid)
	}
	s.nextLasts(sent, a.Valid)
	switch {
	case !s.outlastsNext():
		return nil
	case a.Error != "":
		return fmt.Errorf("%w: %s", errNextShort, a.Error)
	}
	return errNextShort
}

// outlastsNext reports that the core may trust what is held for longer than the next session lasts.
func (s *session) outlastsNext() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.trusted.After(s.lasts)
}
