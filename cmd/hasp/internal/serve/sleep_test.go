package serve

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/memlock"
)

// teller is a ticket of which a test says when it has news.
type teller struct {
	driver.Ticket
	tell  func()
	early bool // it tells before Alert returns
	mute  bool // it cannot tell
}

func (k *teller) Alert(fn func()) bool {
	k.tell = fn
	if fn != nil && k.early {
		fn()
	}
	return !k.mute
}

// A sleep ends once, by whichever comes first of news, the client, the drain, and the end of its time; and does not begin if one of them has come.
func TestSleep(t *testing.T) {
	const long, never = time.Hour, 0
	for name, c := range map[string]struct {
		begin func(k *teller, w *lockWait)
		end   func(k *teller, w *lockWait)
		at    time.Duration // when it wakes; never: it does not sleep
	}{
		"news":                     {nil, func(k *teller, _ *lockWait) { k.tell() }, time.Minute},
		"news, twice":              {nil, func(k *teller, _ *lockWait) { tell := k.tell; tell(); tell() }, time.Minute},
		"news of the sleep before": {nil, func(_ *teller, w *lockWait) { go w.wakeUp() }, time.Minute},
		"client":                   {nil, func(_ *teller, w *lockWait) { w.end(errOvertaken) }, time.Minute},
		"all at once":              {nil, func(k *teller, w *lockWait) { tell := k.tell; go tell(); w.lock.turn.endWait() }, time.Minute},
		"drain":                    {nil, func(_ *teller, w *lockWait) { w.lock.turn.endWait() }, time.Minute},
		"its time":                 {nil, nil, long},
		"the store's time":         {func(_ *teller, w *lockWait) { w.again = time.Now().Add(time.Second) }, nil, time.Second},
		"news while it begins":     {func(k *teller, _ *lockWait) { k.early = true }, nil, never},
		"mute":                     {func(k *teller, _ *lockWait) { k.mute = true }, nil, never},
		"client before":            {func(_ *teller, w *lockWait) { w.end(errOvertaken) }, nil, never},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, err := New(Options{Store: memlock.New().Backend(), Log: slog.New(slog.DiscardHandler)})
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				k := &teller{}
				l := &lock{ticket: k}
				use, err := l.turn.take(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				w := &lockWait{use: use, session: &session{server: s}, lock: l, asks: true, until: began.Add(long)}
				if c.begin != nil {
					c.begin(k, w)
				}
				woken := make(chan time.Duration, 2)
				asleep, able := w.sleep(func() { woken <- time.Since(began) })
				if asleep != (c.at != never) || able == k.mute {
					t.Fatalf("asleep %t, able %t", asleep, able)
				}
				if asleep {
					if c.end != nil {
						time.Sleep(time.Minute)
						c.end(k, w)
					}
					if at := <-woken; at != c.at {
						t.Errorf("woken after %s", at)
					}
				}
				time.Sleep(2 * long)
				if len(woken) > 0 {
					t.Error("woken again")
				}
				if k.tell != nil || w.step != nil || use.cancel != nil {
					t.Error("the sleep has left something behind")
				}
			})
		})
	}
}

// onTime is a context at its deadline, of which the timer has not fired yet.
type onTime struct {
	context.Context
	by time.Time
}

func (c onTime) Deadline() (time.Time, bool) { return c.by, true }

// The store's driver says that the time of a wait is over in the moment before the wait's own timer does. Nothing has failed.
func TestDeadlineNoticedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Options{Store: memlock.New().Backend(), Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		l := &lock{}
		use, err := l.turn.take(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		w := &lockWait{use: use, session: &session{server: s}, lock: l, until: time.Now(), pause: time.Now()}
		w.step, w.done, w.err = onTime{t.Context(), time.Now()}, func() {}, context.DeadlineExceeded
		again, answered := w.came()
		if reply, err := w.result(); again || !answered || err != nil || !w.reply.Unchanged {
			t.Errorf("again %t, answered %t: %+v, %v", again, answered, reply, err)
		}
	})
}
