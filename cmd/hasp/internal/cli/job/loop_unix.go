//go:build unix

package job

import (
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/group"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/hasplock/hasp/internal/exit"
	"github.com/hasplock/hasp/internal/signals"
)

// job is a task under way. Everything that can happen to it (signals, the end of trust, of
// --max-hold, of patience, of the command) arrives in one loop, so there are no two
// opinions about its state.
//
// The order is: first the group is gone, then the lock is released. If this process dies at any
// point of the loop, the guardian kills the group; if it dies after the group has gone and before
// the release, the store frees the lock by itself. If the machine dies, so does everything.
type job struct {
	*Task
	group    *group.Group
	terminal *group.Terminal
	end      Ending

	trust     time.Duration // the longest seen; see untilWarning
	asked     time.Time     // when the first INT or TERM came
	stopping  bool          // hasp itself has sent TERM
	killAt    <-chan time.Time
	killDue   time.Time        // when that is
	againAt   <-chan time.Time // KILL again
	deaf      bool             // some of the group do not accept our signals
	stopped   time.Time        // when we first tried to stop it
	stopAt    <-chan time.Time // when a command that ignores TSTP is stopped for good
	untoldAt  <-chan time.Time // when hasp stops although it has not heard that the command has
	suspended bool             // the user pressed Ctrl-Z
	leftAt    <-chan time.Time // when hasp says for which process it waits
	exited    bool
}

// stopPatience is the time a command has to prepare for being stopped, as editors do. hasp waits as
// long again for the report of a SIGSTOP, and then goes on without it. The report may never come,
// in two cases. The command has ended, and Ctrl-Z is for what it left running. Or the command is
// within vfork and the child was stopped before its exec: the parent then waits for the child where
// no stop signal reaches it (dash forks so; on a busy machine one Ctrl-Z in fifty hits that
// moment). In both nothing of the group runs after SIGSTOP all the same, and SIGCONT sets all of it
// going. The alternative, to stop at once after SIGSTOP, fails: the report of the first stop may
// still be under way, is then read after fg, and stops the job again.
const stopPatience = 200 * time.Millisecond

// Run returns when the whole group is gone.
func (t *Task) Run() Ending {
	j := &job{Task: t}
	j.end.ignoreLoss = j.OnLost.Ignores()
	// The grant may be old already: between it and here this process may have been stopped.
	if err := j.Lock.Err(); err != nil {
		j.end.NotStarted = exit.Of(err)
		return j.end
	}
	g, err := group.Start(j.Path, j.Argv, j.Env, j.WaitDaemons)
	if err != nil {
		j.end.NotStarted = notRunnable(j.Argv[0], err)
		return j.end
	}
	j.group, j.terminal = g, group.OpenTerminal()
	defer j.terminal.Close()
	j.loop()
	j.terminal.TakeBack(g)
	if j.end.stopped = !j.stopped.IsZero(); j.end.stopped && j.deaf {
		j.end.worked = time.Since(j.stopped)
	}
	return j.end
}

func (j *job) loop() {
	var overdue <-chan time.Time
	if j.MaxHold > 0 {
		overdue = time.After(time.Until(j.Acquired.Add(j.MaxHold)))
	}
	warning := time.NewTimer(j.untilWarning())
	defer warning.Stop()
	lost, orphaned := j.Lock.Context().Done(), j.Orphaned
	for {
		select {
		case e := <-j.group.Events():
			if e.Kind == group.Gone {
				return
			}
			j.event(e)
		case sig := <-j.Signals:
			j.forward(sig.(syscall.Signal))
		case by := <-j.Requests:
			j.requested(by)
		case <-lost:
			lost = nil
			j.lost()
		case <-warning.C:
			// Renewals move the deadline without a notification, so this looks again at each end of
			// its sleep. It cannot come late: a deadline only ever moves away.
			left := j.untilWarning()
			if left <= 0 {
				j.losing()
				left = time.Hour // reported once; the loss itself ends the context
			}
			warning.Reset(left)
		case <-overdue:
			overdue = nil
			j.end.overdue = j.MaxHold
			j.terminate()
			j.Say("%q is held for %s, the longest allowed; stopping the command", j.Name, view.Brief(j.MaxHold))
		case <-orphaned:
			orphaned, j.end.Ended = nil, true
			j.terminate()
			j.Say("%v; stopping the command", signals.ErrOrphaned)
		case <-j.killAt:
			j.killAt = nil
			j.kill()
			j.Detail("killing what is left of the command")
		case <-j.againAt:
			j.kill()
		case <-j.stopAt:
			j.stopAt, j.untoldAt = nil, time.After(stopPatience)
			j.send(syscall.SIGSTOP)
		case <-j.untoldAt:
			j.suspend(false)
		case <-j.leftAt:
			j.sayLeft()
		}
	}
}

// leftPatience is how long what a command has left behind is waited for without a word. Few leave
// anything on purpose, and a lock that is held by no visible job is a riddle.
const leftPatience = 5 * time.Second

func (j *job) sayLeft() {
	who := "what it has started"
	if m, known := j.group.Left(); known {
		who = fmt.Sprintf("process %d (%s), which it has left behind", m.PID, m.Command)
	}
	j.Say("the command has ended, and %q is held until %s ends as well", j.Name, view.Clean(who))
}

// forward passes a signal on, to the group and not to the command alone: a script's child does the
// work, and a shell that waits for it would not pass anything on.
func (j *job) forward(sig syscall.Signal) {
	j.send(sig)
	j.Detail("forwarding %s", signals.Name(sig))
	switch {
	case sig == signals.Stop:
		j.suspended = true
		j.stopAt = time.After(stopPatience)
		return
	case slices.Contains(signals.End, os.Signal(sig)):
		j.end.Ended = true
	default:
		return
	}
	if sig == syscall.SIGINT || sig == syscall.SIGTERM {
		j.pressed()
	}
}

// event handles what the group did.
func (j *job) event(e group.Event) {
	switch e.Kind {
	case group.Exited:
		j.end.Status, j.exited = e.Status, true
		j.Detail("the command has ended; waiting for what is left of its group")
		j.leftAt = time.After(leftPatience)
	case group.Failed:
		j.end.NotStarted = notRunnable(j.Argv[0], e.Err)
	case group.Detached:
		does := "works on without the lock: see --wait-daemons"
		if j.leftAt = nil; j.WaitDaemons {
			does = fmt.Sprintf("is waited for, with %q", j.Name)
			if j.end.Ended {
				j.send(syscall.SIGTERM) // the signal that has ended the group is for this one as well
			}
		}
		j.Say("process %d (%s) has left the command's process group, and %s", e.Member.PID, view.Clean(e.Member.Command), does)
	case group.Unguarded:
		j.Say("no guardian could be started: if hasp is killed with -9, what the command has started lives on: %v", e.Err)
	case group.Guarded:
		j.Say("the command had no guardian, which kills it if hasp is killed with -9; another one has been started")
	case group.Stopped:
		switch {
		case j.suspended, e.Signal == signals.Stop:
			j.suspend(false)
		case e.Signal == syscall.SIGTTIN || e.Signal == syscall.SIGTTOU:
			// It wants the terminal. If hasp cannot lend it, hasp is a background job, and stops as
			// such a job does when it reads.
			if !j.terminal.Lend(j.group) {
				j.suspend(true)
			}
		}
		// Someone sent SIGSTOP to the command alone, deliberately: it stays stopped.
	}
}

// suspend stops us like the command, so that the shell we were started from sees a stopped job, and
// continues the command with us. The command is stopped first and continued last: it never runs
// while its lock is not watched. A lock that expires is lost meanwhile, and the command then gets
// KILL instead of being continued; a file lock stays.
//
// Without a shell that does job control hasp cannot be stopped. Then the command must not wait for
// the terminal either (if it wanted the terminal, it was stopped for that): hasp would continue it
// only to see it stop again, for ever and with the lock.
func (j *job) suspend(wanting bool) {
	j.suspended, j.stopAt, j.untoldAt = false, nil, nil
	j.send(syscall.SIGSTOP) // those of the group that have not stopped with the first signal
	lent := j.terminal.TakeBack(j.group)
	if !signals.StopSelf() && wanting && j.terminal.Orphaned() && !j.terminal.Leave(j.group) {
		j.Say("the command waits for the terminal, which it cannot get; it stays stopped")
		return
	}
	if !j.Lock.Held() && j.OnLost.Ends() {
		j.kill() // the loop gives the reason
		return
	}
	if !lent || !j.terminal.Lend(j.group) {
		j.send(syscall.SIGCONT)
	}
}
