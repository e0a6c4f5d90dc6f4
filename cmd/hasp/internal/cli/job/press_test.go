//go:build unix

package job

import (
	"testing"
	"testing/synctest"
	"time"
)

// Ctrl-C that arrives twice within a moment is one, passed on by a parent process; the second one
// of a person has the command killed within a second, or --kill-after if that is shorter.
func TestTwoSignalsInAMoment(t *testing.T) {
	for after, want := range map[time.Duration]time.Duration{10 * time.Minute: time.Second, 300 * time.Millisecond: 300 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			j := &job{Task: &Task{KillAfter: after}}
			j.pressed()
			time.Sleep(samePress - 1)
			j.pressed()
			if j.killAt != nil {
				t.Fatal("one Ctrl-C, seen twice, kills")
			}
			time.Sleep(time.Nanosecond)
			pressed := time.Now()
			j.pressed()
			time.Sleep(100 * time.Millisecond)
			j.pressed() // a third one does not put it off
			<-j.killAt
			if d := time.Since(pressed); d != want {
				t.Errorf("killed %s after the second one, want %s", d, want)
			}
		})
	}
}
