package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/hasplock/hasp/internal/cli/group"
)

// outlet is a descriptor of the user's that we write lines to and never wait for. Ctrl-S, a
// pager that nobody pages, a log collector that hangs: a write to any of these takes as long
// as it likes, and whoever renews a lock or is about to stop a command that has lost it has
// no time for that. A goroutine of the outlet's waits instead.
//
// What does not fit is dropped and counted, the oldest first: the latest lines, that the lock
// was lost and how it all ended, are those that somebody will look for. So the gap is always
// behind the line that is being written, and when that is through, a line says there how much
// is missing. The road not taken, dropping the newest, keeps a thousand lines about failed
// renewals and not the loss.
type outlet struct {
	w      io.Writer
	failed chan error // buffered by one: the first error

	mu      sync.Mutex
	gap     func(lines int) string // the line that tells of dropped ones
	queue   [][]byte
	size    int // bytes in queue
	dropped int
	written chan struct{} // closed when all is; nil when nothing is to be
}

const (
	// outletRoom is what a pipe holds on Linux. As much again is kept here.
	outletRoom = 64 << 10
	// farewellBound is how long our end may wait for all descriptors together. They all work, in
	// which case it takes no time, or somebody has stopped one and does not read it.
	farewellBound = 2 * time.Second
)

// Write takes a line. It never blocks, and never fails: whether the line arrives is seen
// later if at all.
func (o *outlet) Write(line []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.queue = append(o.queue, append([]byte(nil), line...))
	o.size += len(line)
	for o.size > outletRoom && len(o.queue) > 1 {
		o.size -= len(o.queue[0])
		o.queue = o.queue[1:]
		o.dropped++
	}
	if o.written == nil {
		o.written = make(chan struct{})
		go group.DespiteTOSTOP(o.drain)
	}
	return len(line), nil
}

// setGap has gap say how much is missing, in the form of the other lines.
func (o *outlet) setGap(gap func(lines int) string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.gap = gap
}

// drain writes until there is nothing left.
func (o *outlet) drain() {
	for {
		gap, line := o.next()
		if line == nil {
			return
		}
		o.put(append(gap, line...))
	}
}

func (o *outlet) next() (gap, line []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) == 0 {
		close(o.written)
		o.written = nil
		return nil, nil
	}
	if o.dropped > 0 {
		gap = []byte(o.gap(o.dropped))
	}
	line = o.queue[0]
	o.queue, o.size, o.dropped = o.queue[1:], o.size-len(line), 0
	return gap, line
}

// put writes for as long as it takes. That a reader has gone away is no reason to stop
// anything, but for those who look at failed.
//
// A descriptor that others have, too, may be made non-blocking by them at any time (a shell's
// terminal, by ssh and others) and then fails where it would block.
func (o *outlet) put(line []byte) {
	n, err := o.w.Write(line)
	for errors.Is(err, syscall.EAGAIN) {
		time.Sleep(10 * time.Millisecond)
		line = line[n:]
		n, err = o.w.Write(line)
	}
	if err != nil {
		select {
		case o.failed <- err:
		default:
		}
	}
}

// flush waits until all is written, or ctx is done.
func (o *outlet) flush(ctx context.Context) {
	o.mu.Lock()
	written := o.written
	o.mu.Unlock()
	if written == nil {
		return
	}
	select {
	case <-written:
	case <-ctx.Done():
	}
}

// err is the first error, once all that could be written is.
func (o *outlet) err() error {
	ctx, cancel := context.WithTimeout(context.Background(), farewellBound)
	defer cancel()
	o.flush(ctx)
	select {
	case err := <-o.failed:
		return err
	default:
		return nil
	}
}

// outlet is made for each descriptor once; two of them for one would mix their lines.
func (a *app) outlet(w io.Writer, gap func(lines int) string) *outlet {
	o := &outlet{w: w, gap: gap, failed: make(chan error, 1)}
	a.outlets = append(a.outlets, o)
	return o
}

// farewell gives what has been said last its time to arrive.
func (a *app) farewell() {
	ctx, cancel := context.WithTimeout(context.Background(), farewellBound)
	defer cancel()
	for _, o := range a.outlets {
		o.flush(ctx)
	}
}

func gapInWords(lines int) string {
	return fmt.Sprintf("hasp: %d lines are missing here: nobody took what was written\n", lines)
}
