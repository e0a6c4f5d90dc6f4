//go:build unix

package cli

import (
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/hasplock/hasp/internal/cli/group"
)

// job is a task under way. Everything that can happen to it (signals, the end of trust, of
// --max-hold, of patience, of the command) arrives in one loop, so there are no two
// opinions about its state.
//
// The order that counts is: the group is gone, then the lock is released. If this process
// dies at any point of the loop, the guardian kills the group; if it dies after the group
// has gone and before the release, the store frees the lock by itself. If the machine dies,
// so does everything.
type job struct {
	*task
	group    *group.Group
	terminal *group.Terminal
	end      ending

	trust     time.Duration // the longest seen; see untilWarning
	asked     time.Time     // when the first INT or TERM came
	stopping  bool          // TERM was sent for a reason of our own
	killAt    <-chan time.Time
	stopAt    <-chan time.Time // when a command that does not heed TSTP is stopped for good
	untoldAt  <-chan time.Time // when we stop without having been told that it has
	suspended bool             // somebody pressed Ctrl-Z
	exited    bool
}

// stopPatience is what a command has to prepare for being stopped, as editors do. As long
// again we wait to be told of a SIGSTOP, and then do without. We may never be told, in two
// cases. The command has ended, and Ctrl-Z is for what it left running. Or it is within
// vfork and the child was stopped before its exec: the parent then waits for the child
// where no stop signal reaches it (dash forks so; on a busy machine one Ctrl-Z in fifty
// hits that moment). In both nothing of the group runs after SIGSTOP all the same, and
// SIGCONT sets all of it going. The road not taken, to stop at once after SIGSTOP: the news
// of the first stop may then be on its way, is read after fg, and stops the job again.
const stopPatience = 200 * time.Millisecond

// run returns when the whole group is gone.
func (t *task) run() ending {
	j := &job{task: t}
	j.end.ignoreLoss = j.flags.onLost.ignores()
	// The grant may be old already: between it and here this process may have been stopped.
	if err := j.lease.Err(); err != nil {
		j.end.notStarted = fail(err)
		return j.end
	}
	g, err := group.Start(j.path, j.argv, j.env)
	if err != nil {
		j.end.notStarted = notRunnable(j.argv[0], err)
		return j.end
	}
	j.group, j.terminal = g, group.OpenTerminal()
	defer j.terminal.Close()
	j.loop()
	j.terminal.TakeBack(g)
	return j.end
}

func (j *job) loop() {
	var overdue <-chan time.Time
	if j.maxHold > 0 {
		overdue = time.After(time.Until(j.report.acquired.Add(j.maxHold)))
	}
	warning := time.NewTimer(j.untilWarning())
	defer warning.Stop()
	lost := j.lease.Lost()
	for {
		select {
		case e := <-j.group.Events():
			if e.Kind == group.Gone {
				return
			}
			j.event(e)
		case sig := <-j.signals.ch:
			j.forward(sig.(syscall.Signal))
		case by := <-j.requests:
			j.requested(by)
		case <-lost:
			lost = nil
			j.lost()
		case <-warning.C:
			// Renewals move the deadline without telling anybody, so this looks again at each
			// end of its sleep. It cannot come late: a deadline only ever moves away.
			left := j.untilWarning()
			if left <= 0 {
				j.losing()
				left = time.Hour // told once; the loss itself comes by Lost
			}
			warning.Reset(left)
		case <-overdue:
			overdue = nil
			j.end.overdue = j.maxHold
			j.report.say("%q is held for %s, the longest allowed; stopping the command", j.report.name, brief(j.maxHold))
			j.terminate()
		case <-j.killAt:
			j.killAt = nil
			j.report.detail("killing what is left of the command")
			j.send(syscall.SIGKILL)
		case <-j.stopAt:
			j.stopAt, j.untoldAt = nil, time.After(stopPatience)
			j.send(syscall.SIGSTOP)
		case <-j.untoldAt:
			j.suspend()
		}
	}
}

// send signals the group. That it is gone by now is no news: Gone is on its way.
func (j *job) send(sig syscall.Signal) { _ = j.group.Signal(sig) }

// terminate asks the group to end and gives it --kill-after for that. CONT, since who is
// stopped cannot end.
func (j *job) terminate() {
	if j.stopping {
		return
	}
	j.stopping = true
	j.send(syscall.SIGTERM)
	j.send(syscall.SIGCONT)
	j.killBy(time.Now())
}

// killBy has KILL sent --kill-after after t, if it is not to come sooner anyway.
func (j *job) killBy(t time.Time) {
	if j.killAt == nil {
		j.killAt = time.After(time.Until(t.Add(j.flags.killAfter.d)))
	}
}

// forward passes a signal on, to the group and not to the command alone: a script's child
// does the work, and a shell that waits for it would not pass anything on. The first request to end is left to the command, which may
// take its time over it; a second says that somebody has lost patience.
func (j *job) forward(sig syscall.Signal) {
	j.report.detail("forwarding %s", signalName(sig))
	j.send(sig)
	switch {
	case sig == stopSignal:
		j.suspended = true
		j.stopAt = time.After(stopPatience)
		return
	case slices.Contains(endSignals, os.Signal(sig)):
		j.end.ended = true
	default:
		return
	}
	if sig == syscall.SIGINT || sig == syscall.SIGTERM {
		if j.asked.IsZero() {
			j.asked = time.Now()
		} else {
			j.killBy(j.asked)
		}
	}
}

// event handles what the group did.
func (j *job) event(e group.Event) {
	switch e.Kind {
	case group.Exited:
		j.end.status, j.exited = e.Status, true
		j.report.detail("the command has ended; waiting for what is left of its group")
	case group.Stopped:
		switch {
		case j.suspended, e.Signal == stopSignal:
			j.suspend()
		case e.Signal == syscall.SIGTTIN || e.Signal == syscall.SIGTTOU:
			// It wants the terminal. If that is not ours to lend we are a background job, and
			// stop as such a job does when it reads.
			if !j.terminal.Lend(j.group) {
				j.suspend()
			}
		}
		// SIGSTOP was somebody's deliberate act on the command alone: it stays.
	}
}

// suspend stops us like the command, so that the shell we were started from sees a stopped
// job, and continues the command with us. The command is stopped first and continued last:
// it never runs while nobody watches its lock. A lock that expires is lost meanwhile, and
// the command then gets KILL instead of being continued; a file lock stays.
func (j *job) suspend() {
	j.suspended, j.stopAt, j.untoldAt = false, nil, nil
	j.send(syscall.SIGSTOP) // whoever of the group has not stopped with its first
	lent := j.terminal.TakeBack(j.group)
	stopSelf()
	if !j.lease.Held() && j.flags.onLost.ends() {
		j.send(syscall.SIGKILL) // Lost tells why
		return
	}
	if !lent || !j.terminal.Lend(j.group) {
		j.send(syscall.SIGCONT)
	}
}

// untilWarning is how long until the command has to be told that the lock is being lost:
// when of the trust only --kill-after is left, or a quarter, if that is shorter. Then TERM
// and KILL both fit into the time in which nobody else can have the lock.
//
// The quarter is of the longest trust seen, since the store may have granted less than
// asked. A renewal is due when two thirds of the TTL are left, so in good health the
// trust never falls below half of that longest, and there is no false alarm; a quarter is
// what remains of three to four failed renewals.
func (j *job) untilWarning() time.Duration {
	deadline := j.lease.Deadline()
	if deadline.IsZero() {
		return time.Hour // nothing expires; looked at again for simplicity's sake
	}
	left := time.Until(deadline)
	j.trust = max(j.trust, left)
	if j.flags.onLost.ends() {
		left -= min(j.flags.killAfter.d, j.trust/4)
	}
	return left
}

// losing is for a lock that is still ours but will not be for long. Once the command has
// been told to end there is no way back, even if a renewal succeeds after all.
func (j *job) losing() {
	if !j.flags.onLost.ends() || j.end.lost != nil {
		return
	}
	j.end.lost = fmt.Errorf("lock %q at %s could not be renewed until shortly before its end; the command was stopped", j.report.name, j.report.store)
	j.report.say("the lock %q cannot be renewed and ends in %s; stopping the command", j.report.name, brief(time.Until(j.lease.Deadline())))
	j.terminate()
}

// lost is for a lock that is no longer ours. The next holder may have it after the guard,
// and if the store itself has removed us at this moment: there is no time for TERM. The
// road not taken, TERM now and KILL before the guard is over, would leave a tenth of the
// TTL for both, and none at all where the store has spoken.
func (j *job) lost() {
	j.end.lost = j.lease.Err()
	j.report.write(record{Event: "lost", Message: j.end.lost.Error()})
	switch p := &j.flags.onLost; {
	case p.ends():
		j.send(syscall.SIGKILL)
	case p.signal != 0:
		j.send(p.signal)
		j.report.say("%v; the command was sent %s", j.end.lost, signalName(p.signal))
	default:
		j.report.say("%v; the command runs on", j.end.lost)
	}
}
