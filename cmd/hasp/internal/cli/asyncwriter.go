package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/group"
)

// asyncWriter is a descriptor of the user's that hasp writes lines to and never waits for. After
// Ctrl-S, with a pager that is not read, with a log collector that hangs, a write may block for any
// time, and code that renews a lock or is about to stop a command that has lost it cannot wait. The
// asyncWriter's goroutine waits instead.
//
// What does not fit is dropped and counted, the oldest first: the latest lines, that the lock was
// lost and how the run ended, are the ones that a user looks for. So the gap is always behind the
// line that is being written, and after that line another says how much is missing. The
// alternative, dropping the newest, would keep a thousand lines about failed renewals and drop the
// loss.
type asyncWriter struct {
	w      io.Writer
	failed chan error // buffered by one: the first error

	mu      sync.Mutex
	gap     func(lines int) string // the line that tells of dropped ones
	queue   [][]byte
	size    int // bytes in queue
	dropped int
	written chan struct{} // closed when all is written; nil when there is nothing to write
}

const (
	// writerRoom is the capacity of a pipe on Linux. The asyncWriter keeps as much again.
	writerRoom = 64 << 10
	// farewellBound is how long hasp waits at its end for all descriptors together. Either all are
	// read, and then it takes no time, or a reader has stopped.
	farewellBound = 2 * time.Second
)

// Write takes a line. It never blocks, and never fails: whether the line arrives is seen
// later if at all.
func (o *asyncWriter) Write(line []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.queue = append(o.queue, append([]byte(nil), line...))
	o.size += len(line)
	for o.size > writerRoom && len(o.queue) > 1 {
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

// setGap sets the function that says how much is missing, in the form of the other lines.
func (o *asyncWriter) setGap(gap func(lines int) string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.gap = gap
}

// drain writes until there is nothing left.
func (o *asyncWriter) drain() {
	for {
		gap, line := o.next()
		if line == nil {
			return
		}
		o.put(append(gap, line...))
	}
}

func (o *asyncWriter) next() (gap, line []byte) {
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

// put writes for as long as it takes. A reader that has gone away is no reason to stop anything,
// except for code that looks at failed.
//
// A descriptor that others have, too, may be made non-blocking by them at any time (a shell's
// terminal, by ssh and others) and then fails where it would block.
func (o *asyncWriter) put(line []byte) {
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
func (o *asyncWriter) flush(ctx context.Context) {
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

// err is the first error, after everything that could be written has been written.
func (o *asyncWriter) err() error {
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

// asyncWriter is made for each descriptor once; two of them for one would mix their lines.
func (a *app) asyncWriter(w io.Writer, gap func(lines int) string) *asyncWriter {
	o := &asyncWriter{w: w, gap: gap, failed: make(chan error, 1)}
	a.outputs = append(a.outputs, o)
	return o
}

// flushOutputs gives the last lines time to arrive.
func (a *app) flushOutputs() {
	ctx, cancel := context.WithTimeout(context.Background(), farewellBound)
	defer cancel()
	for _, o := range a.outputs {
		o.flush(ctx)
	}
}

func gapInWords(lines int) string {
	return fmt.Sprintf("hasp: %d lines are missing here: the reader did not keep up\n", lines)
}
