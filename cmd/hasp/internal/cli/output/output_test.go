package output

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// A pipe that is not read takes 64 KB and then blocks. Write still returns at once, the oldest
// lines are dropped, and when the pipe is read after all, a line says how many are missing and
// where. With --json that line is a record, as all the others.
func TestWriterDropsAndCounts(t *testing.T) {
	records := func(lines int) string { return fmt.Sprintf("{\"lines\":%d}\n", lines) }
	for before, gap := range map[string]func(int) string{"hasp: ": GapInWords, `"lines":`: records} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		o := New(w, gap)
		const lines = 1000
		for i := range lines {
			fmt.Fprintf(o, "%d %s\n", i, strings.Repeat("x", 500))
		}
		read := make(chan string)
		go func() {
			b, _ := io.ReadAll(r)
			read <- string(b)
		}()
		if err := o.Err(); err != nil {
			t.Error(err)
		}
		w.Close()
		next, missing := 0, 0
		for line := range strings.Lines(<-read) {
			var n int
			switch _, err := fmt.Sscanf(line, "%d x", &n); {
			case err == nil && n == next:
				next++
			case strings.Contains(line, before):
				_, text, _ := strings.Cut(line, before)
				var gap int
				if _, err := fmt.Sscanf(text, "%d", &gap); err != nil {
					t.Fatalf("%q: %v", line, err)
				}
				next, missing = next+gap, missing+gap
			default:
				t.Fatalf("%.40q where line %d was to be, %d missing", line, next, missing)
			}
		}
		if next != lines || missing < 100 || missing > lines-100 {
			t.Errorf("%d lines were told of, %d as missing", next, missing)
		}
	}
}

// The control: nothing is dropped while the pipe is read.
func TestWriterKeepsAllAndTheirOrder(t *testing.T) {
	var read, want strings.Builder
	o := New(&read, GapInWords)
	for i := range 100 {
		fmt.Fprintln(o, i)
		fmt.Fprintln(&want, i)
	}
	if err := o.Err(); err != nil || read.String() != want.String() {
		t.Errorf("%v, %q", err, read.String())
	}
}

// Two descriptors have stalled: the end waits for both together, and not for ever. A third is
// not kept from anything by them.
func TestEndIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all []*Writer
		add := func(w io.Writer) *Writer {
			all = append(all, New(w, GapInWords))
			return all[len(all)-1]
		}
		var writers []*io.PipeReader
		for range 2 {
			r, w := io.Pipe()
			writers = append(writers, r)
			fmt.Fprintln(add(w), "last words")
		}
		var read strings.Builder
		fmt.Fprintln(add(&read), "last words")
		began := time.Now()
		FlushAll(all)
		if d := time.Since(began); d != flushBound {
			t.Errorf("it took %s", d)
		}
		if read.String() != "last words\n" {
			t.Errorf("the third has got %q", read.String())
		}
		for _, r := range writers {
			r.Close()
		}
		FlushAll(all) // they have failed: nothing to wait for
		if d := time.Since(began); d != flushBound {
			t.Errorf("it took %s", d)
		}
	})
}

// busy is a descriptor that another process has made non-blocking: it takes three bytes and then, a
// few times, none.
type busy struct {
	strings.Builder
	calls int
}

func (b *busy) Write(p []byte) (int, error) {
	if b.calls++; b.calls%4 == 0 || len(p) == 0 {
		n := min(3, len(p))
		_, _ = b.Builder.Write(p[:n])
		if n == len(p) {
			return n, nil
		}
		return n, syscall.EAGAIN
	}
	return 0, &os.PathError{Op: "write", Path: "x", Err: syscall.EAGAIN}
}

func TestWriterOnANonBlockingDescriptor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b busy
		o := New(&b, GapInWords)
		fmt.Fprintln(o, "one line")
		fmt.Fprintln(o, "another")
		if err := o.Err(); err != nil || b.String() != "one line\nanother\n" {
			t.Errorf("%v, %q", err, b.String())
		}
	})
}

func TestWriterTellsOfAFailure(t *testing.T) {
	r, w := io.Pipe()
	gone := errors.New("gone")
	r.CloseWithError(gone)
	o := New(w, GapInWords)
	fmt.Fprintln(o, "x")
	if err := o.Err(); !errors.Is(err, gone) {
		t.Errorf("got %v", err)
	}
}
