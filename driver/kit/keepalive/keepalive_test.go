package keepalive_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/bootclock"
	"github.com/hasplock/hasp/driver/kit/keepalive"
)

func TestLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 10 * time.Second
		sent := bootclock.Now()
		time.Sleep(4 * time.Second)
		now := bootclock.Now()
		if left := keepalive.Left(ttl, sent, now); left != 6*time.Second {
			t.Errorf("renewed 4 s ago: %s", left)
		}
		if left := keepalive.Left(ttl, now, sent); left != ttl {
			t.Errorf("renewed since: %s", left)
		}
		if now.Boot == 0 {
			return // this system has no boot clock
		}
		now.Boot += time.Hour
		if left := keepalive.Left(ttl, sent, now); left > ttl-time.Hour {
			t.Errorf("renewed before an hour's sleep: %s", left)
		}
	})
}

func TestAnswer(t *testing.T) {
	const ttl = 10 * time.Second
	why := errors.New("why")
	late := func(left ...time.Duration) map[string]time.Duration {
		m := map[string]time.Duration{}
		for i, l := range left {
			m[string(rune('a'+i))] = l
		}
		return m
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for what, c := range map[string]struct {
		keepalive.Tally
		ctx     context.Context
		granted time.Duration
		err     error // nil: none
		partial bool
	}{
		"all renewed":                {keepalive.Tally{All: 3}, t.Context(), ttl, nil, false},
		"none renewed":               {keepalive.Tally{All: 2, Late: late(9*time.Second, ttl), Err: why}, t.Context(), 0, why, false},
		"none, since time was short": {keepalive.Tally{All: 1, Late: late(ttl)}, over, 0, context.Canceled, false},
		"some, since time was short": {keepalive.Tally{All: 3, Late: late(7*time.Second, 8*time.Second)}, over, 0, context.Canceled, true},
		"one that ends soon":         {keepalive.Tally{All: 9, Late: late(2 * time.Second)}, over, 0, context.Canceled, true},
		"one that is over":           {keepalive.Tally{All: 9, Late: late(-time.Second), Err: why}, over, 0, why, true},
		"a server that is silent":    {keepalive.Tally{All: 9, Late: late(9 * time.Second), Err: why, ServerFailed: true}, t.Context(), 0, why, true},
	} {
		c.TTL = ttl
		granted, err := c.Answer(c.ctx)
		if granted != c.granted || !errors.Is(err, c.err) {
			t.Errorf("%s: %s, %v; want %s, %v", what, granted, err, c.granted, c.err)
		}
		var partial *driver.PartialRenewal
		if errors.As(err, &partial) != c.partial {
			t.Errorf("%s: %v", what, err)
		}
		if c.partial && (partial.Granted != ttl || partial.Slow == c.ServerFailed || len(partial.Late) != len(c.Late)) {
			t.Errorf("%s: %+v", what, partial)
		}
	}
}

// Where a round trip is all that a call takes, many are under way; where calls wait for each
// other, few are: what is under way at the end is done for nothing.
func TestSlices(t *testing.T) {
	for what, c := range map[string]struct {
		delay     time.Duration // of the network
		each      time.Duration // for which a call keeps the server to itself
		least     int           // at once, at the widest
		most      int
		all, stop int
	}{
		"far away": {100 * time.Millisecond, 0, 8, 8, 100, -1},
		"slow":     {0, 100 * time.Millisecond, 2, 3, 100, -1},
		"one":      {time.Millisecond, time.Millisecond, 1, 1, 1, -1},
		"none":     {0, 0, 0, 0, 0, -1},
		"refused":  {time.Millisecond, 0, 1, 8, 100, 20},
	} {
		synctest.Test(t, func(t *testing.T) {
			server := make(chan struct{}, 1) // a call that has put something in has it alone
			var now, widest, done atomic.Int64
			keepalive.Slices(c.all, 8, func(i int) bool {
				widest.Store(max(widest.Load(), now.Add(1)))
				time.Sleep(c.delay)
				server <- struct{}{}
				time.Sleep(c.each)
				<-server
				now.Add(-1)
				done.Add(1)
				return i != c.stop
			})
			if n := int(widest.Load()); n < c.least || n > c.most {
				t.Errorf("%s: %d at once, want %d to %d", what, n, c.least, c.most)
			}
			switch n := int(done.Load()); {
			case c.stop < 0 && n != c.all, c.stop >= 0 && (n <= c.stop || n > c.stop+16):
				t.Errorf("%s: %d of %d calls", what, n, c.all)
			}
			if now.Load() != 0 {
				t.Errorf("%s: back before all calls were", what)
			}
		})
	}
}

// A call that is never answered, or late, holds up none of the others: neither the first, which has
// all the others wait for it, nor some in the middle.
func TestSlicesPastSilence(t *testing.T) {
	for what, silent := range map[string][]int{"first": {0}, "first two": {0, 1}, "middle": {40, 50, 60}} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			var done atomic.Int64
			var last time.Duration
			keepalive.Slices(100, 8, func(i int) bool {
				if slices.Contains(silent, i) {
					time.Sleep(time.Minute)
					return true
				}
				time.Sleep(10 * time.Millisecond)
				if done.Add(1) == int64(100-len(silent)) {
					last = time.Since(began)
				}
				return true
			})
			if last == 0 || last > 2*time.Second {
				t.Errorf("%s: the others were done after %s", what, last)
			}
		})
	}
}
