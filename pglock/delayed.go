package pglock

import (
	"slices"
	"sync"
	"time"
)

// delayed has something done for each lock that is held for longer than a certain time. Most are
// released sooner, and would set up a timer and a context for nothing; with 64 goroutines these
// were a tenth and more of the client's processor time. So there is one timer, for the oldest; it
// fires once in that time however many locks come and go.
type delayed struct {
	after time.Duration

	mu    sync.Mutex
	queue []delayedTask // oldest first; those that are over stay until they are due, or the first
	timer *time.Timer   // nil: the queue is empty
}

type delayedTask struct {
	task  task
	added time.Time
}

type task interface {
	over() bool // nothing is to be done any more
	due()       // called once for each add, unless it is over; must not block
}

func (d *delayed) add(t task) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queue = append(d.queue, delayedTask{t, time.Now()})
	if d.timer == nil {
		d.timer = time.AfterFunc(d.after, d.fire)
	}
}

func (d *delayed) fire() {
	for _, t := range d.take() {
		t.due()
	}
}

// take removes those that are due or over, and sets the timer for the first of the others.
func (d *delayed) take() (due []task) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, now := 0, time.Now()
	for _, t := range d.queue {
		over := t.task.over()
		if !over && now.Sub(t.added) < d.after {
			break
		}
		if !over {
			due = append(due, t.task)
		}
		n++
	}
	d.queue = slices.Delete(d.queue, 0, n)
	if len(d.queue) == 0 {
		d.queue, d.timer = nil, nil
	} else {
		d.timer.Reset(d.after - now.Sub(d.queue[0].added))
	}
	return due
}
