package hasp

import "time"

// instant is a point in time on the two clocks that never jump. A lease must run out
// while the machine sleeps, and Go's monotonic reading (CLOCK_MONOTONIC on Linux) stands
// still then; CLOCK_BOOTTIME does not. It is not used alone, because the monotonic one is
// what timers and fake time (testing/synctest) follow: the greater of both is safe in
// either world.
type instant struct {
	mono time.Time
	boot time.Duration // since boot, suspend included; 0 where the system has no such clock
}

func now() instant { return instant{mono: time.Now(), boot: bootTime()} }

// since returns the time from t to now, never less than the real one, and how much of
// it the machine spent suspended.
func since(t instant) (elapsed, suspended time.Duration) {
	n := now()
	mono, boot := n.mono.Sub(t.mono), n.boot-t.boot
	if boot > mono {
		return boot, boot - mono
	}
	return mono, 0
}
