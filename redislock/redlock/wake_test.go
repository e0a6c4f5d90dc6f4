package redlock

import (
	"testing"
	"testing/synctest"
	"time"
)

// L2: a waiter tries for another reason between the first server's announcement of a release and
// the others'. It finds the lock taken there, waits again, and is woken: it must try again, however
// few servers announce. (It took them for the rest of the earlier release.)
func TestToldWhileTrying(t *testing.T) {
	for rest := 1; rest <= 4; rest++ {
		synctest.Test(t, func(t *testing.T) {
			w := &ticket{}
			s := &session{store: &store{nodes: make([]*node, 5), quorum: 3}, tickets: map[string]*ticket{"w": w}}
			w.session = s
			s.releaseAnnounced(0, "w")
			s.mu.Lock()
			w.announced.begin()
			s.mu.Unlock()
			time.Sleep(2 * waitAfterFirst) // the first one's timer is that of an attempt that is over
			select {
			case <-w.signal.C():
				t.Fatal("woken by what the attempt has seen")
			default:
			}
			for i := range rest {
				s.releaseAnnounced(1+i, "w")
			}
			time.Sleep(waitAfterFirst)
			synctest.Wait()
			select {
			case <-w.signal.C():
			default:
				t.Errorf("told by %d servers after the attempt, and asleep", rest)
			}
		})
	}
}

// A newcomer that has left a free lock to the waiters tries by itself when those in front could
// have died, one after the other, but not for longer than a third of a TTL. (It tried four times a
// second, also behind 500 others.)
func TestPauseBehindWaiters(t *testing.T) {
	w := &ticket{session: &session{}}
	w.session.opts.TTL = 9 * time.Second
	for ahead, want := range map[int64]time.Duration{0: later, 3: 4 * later, 500: 3 * time.Second, 1 << 60: 3 * time.Second} {
		c := count{denied: []ballot{{value: "other", holder: "other"}, {ahead: ahead}, {ahead: 0}}}
		if got := w.pause(c, 0); got < want || got > want+later/4 {
			t.Errorf("%s behind %d waiters, want %s", got, ahead, want)
		}
	}
}
