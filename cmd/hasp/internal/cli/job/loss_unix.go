//go:build unix

package job

import (
	"cmp"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/group"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/hasplock/hasp/internal/signals"
)

// untilWarning is how long until the command has to be told that the lock is being lost: until only
// --kill-after of the trust is left, or a quarter of it, if that is shorter. Then TERM and KILL
// both fit into the time in which no other client can have the lock.
//
// The quarter is of the longest trust seen, since the store may have granted less than asked. A
// renewal is due when two thirds of the TTL are left, so in good health the trust never falls below
// half of that longest, and there is no false alarm; a quarter remains after three to four failed
// renewals.
func (j *job) untilWarning() time.Duration {
	deadline := j.Lock.Deadline()
	if deadline.IsZero() {
		return time.Hour // nothing expires; looking again after an hour keeps the loop simple
	}
	left := time.Until(deadline)
	j.trust = max(j.trust, left)
	if j.OnLost.Ends() {
		left -= min(j.KillAfter, j.trust/4)
	}
	return left
}

// losing handles a lock that is still held but is about to be lost. Once the command has been told
// to end, that stands, even if a renewal still succeeds.
func (j *job) losing() {
	if !j.OnLost.Ends() || j.end.Lost != nil {
		return
	}
	j.terminate()
	j.end.Lost = fmt.Errorf("lock %q at %s could not be renewed until shortly before its end", j.Name, j.Store)
	j.Say("the lock %q cannot be renewed and ends in %s; stopping the command", j.Name, view.Brief(time.Until(j.Lock.Deadline())))
}

// lost handles a lock that is no longer held. The next holder may have it after the safety margin,
// or at once if the store itself has removed the entry: there is no time for TERM. The alternative,
// TERM now and KILL before the safety margin is over, would leave a tenth of the TTL for both, and
// no time at all if the store has removed the entry.
func (j *job) lost() {
	p := &j.OnLost
	switch {
	case p.Ends():
		j.kill()
	case p.Signal != 0:
		j.send(p.Signal)
	}
	j.end.Lost = j.Lock.Err()
	j.Event("lost", j.end.Lost.Error(), nil)
	switch {
	case p.Ends(): // the failure says it
	case p.Signal != 0:
		j.sayLoss("the command was sent " + signals.Name(p.Signal))
	default:
		j.sayLoss("the command runs on")
	}
}

// sayLoss does not keep the loop waiting for the store.
func (j *job) sayLoss(so string) {
	lost := j.end.Lost
	go func() { j.Say("%v; %s", j.Explain(lost), so) }()
}

// terminate asks the group to end and gives it --kill-after for that. It also sends CONT, since a
// stopped process cannot end.
func (j *job) terminate() {
	if j.stopping {
		return
	}
	j.stopping = true
	j.stopped = cmp.Or(j.stopped, time.Now())
	j.send(syscall.SIGTERM)
	j.send(syscall.SIGCONT)
	j.killIn(j.KillAfter)
}

// killIn has KILL sent after d, if it is not to come sooner anyway.
func (j *job) killIn(d time.Duration) {
	if due := time.Now().Add(d); j.killAt == nil || due.Before(j.killDue) {
		j.killAt, j.killDue = time.After(d), due
	}
}

const (
	// secondThought is how long the command has after a second INT or TERM: the user does not want
	// to wait any longer.
	secondThought = time.Second
	// samePress is within which two such signals are one: a parent process that passes Ctrl-C on
	// sends the signal that the terminal has sent already, and the command must not lose the time
	// to tidy up for that. A person needs longer to press twice.
	samePress = 100 * time.Millisecond
)

// pressed counts the requests to end. The first is left to the command, which may take its time
// over it. A second one has it killed, at most secondThought later.
func (j *job) pressed() {
	switch now := time.Now(); {
	case j.asked.IsZero():
		j.asked = now
	case now.Sub(j.asked) >= samePress:
		j.killIn(min(secondThought, j.KillAfter))
	}
}

// killEvery is how often KILL is repeated while the group lives: a process that runs as
// another user may give that up, or leave the group to those that do not.
const killEvery = time.Second

// kill ends the group, or tries to until it is gone.
func (j *job) kill() {
	j.stopped = cmp.Or(j.stopped, time.Now())
	j.send(syscall.SIGKILL)
	j.againAt = time.After(killEvery)
	if out := j.group.OutOfReach(); len(out) > 0 {
		j.unheard(out)
	}
}

// send signals the group. An error because the group is gone needs no report: Gone follows. But if
// no process of the group accepts our signals, a user who thinks that the command was stopped must
// know it.
func (j *job) send(sig syscall.Signal) {
	if err := j.group.Signal(sig); errors.Is(err, syscall.EPERM) {
		j.unheard(j.group.OutOfReach())
	}
}

// unheard reports once that some of the group do not accept our signals.
func (j *job) unheard(out []group.Member) {
	if j.deaf {
		return
	}
	j.deaf = true
	why := "it runs as another user"
	if len(out) > 0 {
		why = fmt.Sprintf("process %d of it runs as user %d", out[0].PID, out[0].UID)
	}
	j.Say("the command cannot be signalled: %s", why)
}

// requested handles a request for the lock. Only the flag makes a holder comply, and then as at the
// end of --max-hold: the outcome depends on how the command reacts to TERM.
func (j *job) requested(by hasp.Owner) {
	p, does := &j.OnAsk, "stopping the command"
	switch {
	case p.Ends():
		j.terminate()
	case p.Says():
		does = "the command runs on"
	default:
		j.send(p.Signal)
		does = "the command was sent " + signals.Name(p.Signal)
	}
	j.Event("asked", by.Asks, &by)
	j.Say("%s asks for %q: %s; %s", view.Owner(by), j.Name, view.Clean(by.Asks), does)
}
