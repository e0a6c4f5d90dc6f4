package pushqueue_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/pushqueue"
)

type (
	answer  = pushqueue.Answer
	ticket  = pushqueue.Ticket[string]
	session = pushqueue.Session[string]
)

// store answers what a test has it answer.
type store struct {
	*session
	enter  func(mode pushqueue.Mode) (answer, error)
	leave  func(t *ticket, again bool) error
	number uint64
	asked  []pushqueue.Mode
	gone   []string // the losses that the session has reported
}

func (s *store) Enter(_ context.Context, _ *ticket, mode pushqueue.Mode) (answer, error) {
	s.asked = append(s.asked, mode)
	return s.enter(mode)
}

func (s *store) Leave(_ context.Context, t *ticket, again bool) error { return s.leave(t, again) }

func (s *store) Publish(_ context.Context, _ *ticket, _ []byte, number uint64) (bool, error) {
	s.number = number
	return true, nil
}

func (s *store) Downgrade(context.Context, *ticket, int64) (bool, error) { return false, nil }

func (s *store) Adopt(_ context.Context, _ *ticket, _ string, seq uint64) (answer, error) {
	return answer{State: pushqueue.Held, Seq: seq, Number: 41}, nil
}

func open(enter func(pushqueue.Mode) (answer, error)) *store {
	s := &store{enter: enter, leave: func(*ticket, bool) error { return nil }}
	s.session = pushqueue.New[string](s, driver.SessionOptions{TTL: time.Hour, Gone: func(id string, _ error) {
		s.Lock() // it is called without
		defer s.Unlock()
		s.gone = append(s.gone, id)
	}})
	return s
}

func (s *store) ticket(id string) *ticket { return s.Prepare(driver.Request{Name: "name", ID: id}) }

func says(a answer) func(pushqueue.Mode) (answer, error) {
	return func(pushqueue.Mode) (answer, error) { return a, nil }
}

func (s *store) ids() (ids []string) {
	s.Lock()
	defer s.Unlock()
	for t := range s.Tickets() {
		ids = append(ids, t.Request.ID)
	}
	slices.Sort(ids)
	return ids
}

var waits = answer{State: pushqueue.Waits, Seq: 7, Retry: time.Minute}

func want(t *testing.T, v driver.Verdict, err error, wanted driver.Verdict, wantErr error) {
	t.Helper()
	if v != wanted || !errors.Is(err, wantErr) {
		t.Errorf("%+v, %v; want %+v, %v", v, err, wanted, wantErr)
	}
}

var held = driver.Verdict{Held: true, Token: 7}

// A grant is pushed after the answer "wait", or overtakes it. Its Seq may be later than that of the
// answer. One that an earlier entry of the ID has left on its way changes nothing.
func TestGrant(t *testing.T) {
	for what, push := range map[string]struct {
		before, after string
		token         uint64 // 0: not granted
	}{
		"after":        {"", "me 7", 7},
		"before":       {"me 7", "", 7},
		"later, after": {"", "me 9", 9},
		"later":        {"me 9", "", 9},
		"earlier":      {"me 6", "me 5", 0},
		"other":        {"you 7", "you 7", 0},
		"foreign":      {"me", "me x", 0},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var s *store
				s = open(func(pushqueue.Mode) (answer, error) {
					s.Message(push.before)
					return waits, nil
				})
				k := s.ticket("me")
				v, err := k.Enqueue(t.Context())
				if v.Held != (push.token > 0 && push.before != "") || err != nil {
					t.Errorf("%+v, %v", v, err)
				}
				time.AfterFunc(time.Second, func() { s.Message(push.after) })
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if v, err = k.Wait(ctx); push.token > 0 {
					want(t, v, err, driver.Verdict{Held: true, Token: push.token}, nil)
				} else {
					want(t, v, err, driver.Verdict{}, context.DeadlineExceeded)
				}
				if len(s.asked) != 1 {
					t.Errorf("asked %d times", len(s.asked))
				}
			})
		})
	}
}

// Where a grant must be confirmed, Wait asks. So it does where nothing is pushed.
func TestWaitAsks(t *testing.T) {
	for what, c := range map[string]struct {
		confirm bool
		poll    time.Duration
		push    string
		retry   time.Duration
	}{
		"confirm":                     {true, 0, "me 7", 0},
		"confirm, and news to answer": {true, 0, "me 7", time.Second},
		"poll":                        {false, time.Second, "", 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			a := waits
			a.Poll = c.poll
			s := open(says(a))
			s.Confirm = c.confirm
			k := s.ticket("me")
			v, err := k.Enqueue(t.Context())
			want(t, v, err, driver.Verdict{Retry: time.Minute}, nil)
			s.Message(c.push)
			if c.retry > 0 {
				s.Lock()
				k.AskAfter(c.retry)
				s.Unlock()
			}
			s.enter = says(answer{State: pushqueue.Held, Seq: 7})
			v, err = k.Wait(t.Context())
			want(t, v, err, held, nil)
			if !slices.Equal(s.asked, []pushqueue.Mode{pushqueue.First, pushqueue.Ask}) {
				t.Errorf("%s: asked %v", what, s.asked)
			}
		})
	}
}

// What a ticket is after an answer, and whether it is renewed.
func TestAnswers(t *testing.T) {
	lost := errors.New("no answer")
	refused := fmt.Errorf("disk full: %w", driver.ErrRefused)
	mismatch := &driver.MismatchError{Name: "name", Want: 1, Found: 2}
	type reply struct {
		a   answer
		err error
	}
	for what, c := range map[string]struct {
		replies []reply
		verdict driver.Verdict
		err     error
		ids     []string
		last    pushqueue.Mode
		gone    []string
	}{
		"held":             {[]reply{{answer{State: pushqueue.Held, Seq: 7}, nil}}, held, nil, []string{"me"}, pushqueue.First, nil},
		"busy":             {[]reply{{answer{State: pushqueue.Busy, Holder: "you"}, nil}}, driver.Verdict{Holder: "you"}, nil, nil, pushqueue.First, nil},
		"lost":             {[]reply{{err: lost}}, driver.Verdict{}, lost, []string{"me"}, pushqueue.First, nil},
		"lost, and found":  {[]reply{{err: lost}, {answer{State: pushqueue.Held, Seq: 7}, nil}}, held, nil, []string{"me"}, pushqueue.Again, nil},
		"refused":          {[]reply{{err: refused}}, driver.Verdict{}, driver.ErrRefused, nil, pushqueue.First, nil},
		"mismatch":         {[]reply{{err: mismatch}}, driver.Verdict{}, driver.ErrMismatch, nil, pushqueue.First, nil},
		"lost, refused":    {[]reply{{err: lost}, {err: refused}}, driver.Verdict{}, driver.ErrRefused, []string{"me"}, pushqueue.Again, nil},
		"waits, refused":   {[]reply{{waits, nil}, {err: refused}}, driver.Verdict{}, driver.ErrRefused, []string{"me"}, pushqueue.Ask, nil},
		"refused, again":   {[]reply{{err: refused}, {waits, nil}}, driver.Verdict{Retry: time.Minute}, nil, []string{"me"}, pushqueue.First, nil},
		"waits, gone":      {[]reply{{waits, nil}, {answer{State: pushqueue.Gone}, nil}}, driver.Verdict{}, driver.ErrGone, nil, pushqueue.Ask, nil},
		"the session died": {[]reply{{answer{State: pushqueue.Dead}, nil}}, driver.Verdict{}, driver.ErrGone, []string{"me"}, pushqueue.First, []string{""}},
	} {
		i := 0
		s := open(nil)
		s.enter = func(pushqueue.Mode) (answer, error) {
			i++
			return c.replies[i-1].a, c.replies[i-1].err
		}
		k := s.ticket("me")
		var v driver.Verdict
		var err error
		for range c.replies {
			v, err = k.Enqueue(t.Context())
		}
		t.Log(what)
		want(t, v, err, c.verdict, c.err)
		if ids := s.ids(); !slices.Equal(ids, c.ids) || s.asked[len(s.asked)-1] != c.last || !slices.Equal(s.gone, c.gone) {
			t.Errorf("%s: %q are left, asked as %d, told of %q", what, ids, s.asked[len(s.asked)-1], s.gone)
		}
	}
	// An answer that means nothing must not mean "held".
	if v, err := open(says(answer{})).ticket("me").Enqueue(t.Context()); err == nil || v.Held {
		t.Errorf("no answer: %+v, %v", v, err)
	}
}

// An eviction is reported if it is of this entry, and ends its Wait.
func TestEvicted(t *testing.T) {
	s := open(says(waits))
	k := s.ticket("me")
	if _, err := k.Enqueue(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"me -6", "you -7", "me 0", "me -"} {
		if s.Message(text); len(s.gone) > 0 {
			t.Errorf("%q: told of %q", text, s.gone)
		}
	}
	s.Message("me -7")
	if !slices.Equal(s.gone, []string{"me"}) || s.ids() != nil {
		t.Errorf("told of %q; %q are left", s.gone, s.ids())
	}
	for _, call := range []func(context.Context) (driver.Verdict, error){k.Wait, k.Enqueue} {
		v, err := call(t.Context())
		want(t, v, err, driver.Verdict{}, driver.ErrGone)
	}
	if err := k.Leave(t.Context()); !errors.Is(err, driver.ErrGone) || len(s.asked) != 1 {
		t.Errorf("left with %v, after %d requests", err, len(s.asked))
	}
}

// An answer that comes after Leave, or after the end of the session, does not bring the entry
// back. A leaving entry is not renewed, and not reported; one that has left is no orphan.
func TestLeaveOvertakes(t *testing.T) {
	s := open(nil)
	k := s.ticket("me")
	lost, agains := errors.New("no answer"), []bool(nil)
	s.leave = func(_ *ticket, again bool) error {
		agains = append(agains, again)
		return lost
	}
	s.enter = func(pushqueue.Mode) (answer, error) {
		if err := k.Leave(t.Context()); err != lost {
			t.Errorf("left with %v", err)
		}
		return answer{State: pushqueue.Held, Seq: 7}, nil
	}
	v, err := k.Enqueue(t.Context())
	want(t, v, err, driver.Verdict{}, driver.ErrGone)
	if s.ids() != nil {
		t.Errorf("%q are renewed", s.ids())
	}
	known, err := s.Known()
	if err != nil || !known.Agrees(0, 0) {
		t.Errorf("who is leaving is counted: %v", err)
	}
	lost = nil
	if err := k.Leave(t.Context()); err != nil || !slices.Equal(agains, []bool{false, true}) {
		t.Errorf("%v after %v", err, agains)
	}
	there := map[string]string{"me": "name", "late": "name"}
	if orphans := s.Renewed(known, "here", there); !maps.Equal(orphans, map[string]string{"late": "name"}) || s.gone != nil {
		t.Errorf("orphans %v, reported %q", orphans, s.gone)
	}
	s.enter = says(waits)
	late := s.ticket("other")
	if _, err := late.Enqueue(t.Context()); err != nil {
		t.Error(err)
	}
	if last := s.End(); len(last) != 1 || last[0] != late || s.End() != nil {
		t.Errorf("%d tickets at the end, then %d", len(last), len(s.End()))
	}
	for _, call := range []func(context.Context) (driver.Verdict, error){late.Wait, late.Enqueue} {
		v, err := call(t.Context())
		want(t, v, err, driver.Verdict{}, driver.ErrGone)
	}
}

// A renewal misses what it knew when it was sent, and nothing that came up since. Where it has
// seen an entry, a server that has none removed it; any other may have forgotten it.
func TestRenewed(t *testing.T) {
	s := open(nil)
	s.Begun("here")
	enter := func(id string, seq uint64) *ticket {
		s.enter = says(answer{State: pushqueue.Held, Seq: seq})
		k := s.ticket(id)
		if v, err := k.Enqueue(t.Context()); err != nil || !v.Held {
			t.Errorf("%s: %+v, %v", id, v, err)
		}
		return k
	}
	kept, lost := enter("kept", 3), enter("lost", 5)
	known, err := s.Known()
	if err != nil || !known.Agrees(2, 3^5) || known.Agrees(1, 3^5) || known.Agrees(2, 3) {
		t.Errorf("two entries do not agree with the known state: %v", err)
	}
	since := enter("since", 9)
	orphans := s.Renewed(known, "there", map[string]string{"kept": "name"})
	if !slices.Equal(s.gone, []string{"lost"}) || len(orphans) != 0 {
		t.Errorf("reported %q, orphans %v", s.gone, orphans)
	}
	for _, c := range []struct {
		k         *ticket
		at        string
		elsewhere bool
	}{{kept, "there", false}, {kept, "here", true}, {since, "here", false}, {since, "there", true}, {kept, "", true}, {lost, "here", false}} {
		if c.k.ElsewhereThan(c.at) != c.elsewhere {
			t.Errorf("%s: elsewhere than %q: %t", c.k.Request.ID, c.at, !c.elsewhere)
		}
	}
	if later := enter("later", 11); later.ElsewhereThan("there") {
		t.Error("entered elsewhere than the last renewal")
	}
	known, _ = s.Known()
	if s.Renewed(known, "there", nil); since.ElsewhereThan("there") || len(s.gone) != 1 {
		t.Errorf("a renewal that agrees has not seen it; told of %q", s.gone)
	}
}

// Values are numbered, from that of the entry that was adopted on.
func TestNumbers(t *testing.T) {
	s := open(nil)
	k := s.ticket("me")
	v, err := k.Adopt(t.Context(), "you", 7)
	want(t, v, err, held, nil)
	for _, number := range []uint64{42, 43} {
		if err := k.Publish(t.Context(), nil); err != nil || s.number != number {
			t.Errorf("number %d, want %d: %v", s.number, number, err)
		}
	}
	if err := k.Downgrade(t.Context(), 1); !errors.Is(err, driver.ErrGone) {
		t.Errorf("an entry that is not there: %v", err)
	}
}

// News of a renewal ends a Wait; those that a request answers are old.
func TestAskAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(says(waits))
		k := s.ticket("me")
		ask := func() {
			s.Lock()
			defer s.Unlock()
			k.AskAfter(time.Second)
		}
		if _, err := k.Enqueue(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Minute, ask)
		v, err := k.Wait(t.Context())
		want(t, v, err, driver.Verdict{Retry: time.Second}, nil)
		ask()
		if _, err := k.Enqueue(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		v, err = k.Wait(ctx)
		want(t, v, err, driver.Verdict{}, context.DeadlineExceeded)
	})
}
