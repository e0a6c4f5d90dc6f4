// Package output writes to descriptors whose readers may stall.
package output

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/group"
)

// Writer is a descriptor of the user's that hasp writes lines to and never waits for. After
// Ctrl-S, with a pager that is not read, with a log collector that hangs, a write may block for any
// time, and code that renews a lock or is about to stop a command that has lost it cannot wait. The
// Writer's goroutine waits instead.
//
// What does not fit is dropped and counted, the oldest first: the latest lines, that the lock was
// lost and how the run ended, are the ones that a user looks for. So the gap is always behind the
// line that is being written, and after that line another says how much is missing. The
// alternative, dropping the newest, would keep a thousand lines about failed renewals and drop the
// loss.
type Writer struct {
	w      io.Writer
	Failed chan error // buffered by one: the first error

	mu      sync.Mutex
	gap     func(lines int) string // the line that tells of dropped ones
	queue   [][]byte
	size    int // bytes in queue
	dropped int
	written chan struct{} // closed when all is written; nil when there is nothing to write
}

const (
	// writerRoom is the capacity of a pipe on Linux. The Writer keeps as much again.
	writerRoom = 64 << 10
	// flushBound is how long hasp waits at its end for all descriptors together. Either all are
	// read, and then it takes no time, or a reader has stopped.
	flushBound = 2 * time.Second
)

// Write takes a line. It never blocks, and never fails: whether the line arrives is seen
// later if at all.
func (o *Writer) Write(line []byte) (int, error) {
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

// SetGap sets the function that says how much is missing, in the form of the other lines.
func (o *Writer) SetGap(gap func(lines int) string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.gap = gap
}

// drain writes until there is nothing left.
func (o *Writer) drain() {
	for {
		gap, line := o.next()
		if line == nil {
			return
		}
		o.put(append(gap, line...))
	}
}

func (o *Writer) next() (gap, line []byte) {
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
// except for code that looks at Failed.
//
// A descriptor that others have, too, may be made non-blocking by them at any time (a shell's
// terminal, by ssh and others) and then fails where it would block.
func (o *Writer) put(line []byte) {
	n, err := o.w.Write(line)
	for errors.Is(err, syscall.EAGAIN) {
		time.Sleep(10 * time.Millisecond)
		line = line[n:]
		n, err = o.w.Write(line)
	}
	if err != nil {
		select {
		case o.Failed <- err:
		default:
		}
	}
}

// Flush waits until all is written, or ctx is done.
func (o *Writer) Flush(ctx context.Context) {
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

// Err is the first error, after everything that could be written has been written.
func (o *Writer) Err() error {
	ctx, cancel := context.WithTimeout(context.Background(), flushBound)
	defer cancel()
	o.Flush(ctx)
	select {
	case err := <-o.Failed:
		return err
	default:
		return nil
	}
}

// New makes one for a descriptor. Two of them for one descriptor would mix their lines.
func New(w io.Writer, gap func(lines int) string) *Writer {
	return &Writer{w: w, gap: gap, Failed: make(chan error, 1)}
}

// FlushAll gives the last lines time to arrive.
func FlushAll(all []*Writer) {
	ctx, cancel := context.WithTimeout(context.Background(), flushBound)
	defer cancel()
	for _, o := range all {
		o.Flush(ctx)
	}
}

// GapInWords is for people.
func GapInWords(lines int) string {
	return fmt.Sprintf("hasp: %d lines are missing here: the reader did not keep up\n", lines)
}

// SurviveClosedPipes makes a write to a standard stream whose reader has gone fail with an error
// instead of killing hasp, and the command with it. SIGPIPE is caught and not ignored: an ignored
// signal stays ignored in the command, as it does if the parent process ignored it.
var SurviveClosedPipes = sync.OnceFunc(func() {
	if !signal.Ignored(syscall.SIGPIPE) {
		signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	}
})
