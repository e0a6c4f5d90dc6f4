//go:build linux

package audit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/testkit"
)

func opened(t *testing.T, path string) *Log {
	t.Helper()
	l, err := Open(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// read returns the lines of a text; each must be whole.
func read(t *testing.T, text io.Reader) (all []Line) {
	t.Helper()
	for lines := bufio.NewScanner(text); lines.Scan(); {
		var x Line
		if err := json.Unmarshal(lines.Bytes(), &x); err != nil {
			t.Fatalf("%q: %v", lines.Text(), err)
		}
		all = append(all, x)
	}
	return all
}

func readFile(t *testing.T, path string) []Line {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return read(t, bytes.NewReader(b))
}

// A file that is renamed while lines are written: each line is in one of them, once.
func TestRotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l := opened(t, path)
	const n, files = 20_000, 10
	seen, rotated := map[uint64]int{}, ""
	for i := range uint64(n) {
		l.Write(Line{Event: Grant, Name: "a", Token: i + 1})
		if i > 0 && len(rotated) > 0 { // the next file is made with the next line
			testkit.Eventually(t, "the next file", func() bool { _, err := os.Stat(path); return err == nil })
			rotated = ""
		}
		if i%(n/files) == n/files/2 {
			old := fmt.Sprintf("%s.%d", path, i)
			if err := os.Rename(path, old); err != nil {
				t.Fatal(err)
			}
			rotated = old
		}
		for len(l.lines) > room/2 { // the writer is to keep up: this is not about a slow disk
			time.Sleep(time.Millisecond)
		}
	}
	l.Close()
	all, err := filepath.Glob(path + "*")
	if err != nil || len(all) != files+1 {
		t.Fatalf("files: %q, %v", all, err)
	}
	for _, f := range all {
		if info, err := os.Stat(f); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", f, info.Mode(), err)
		}
		for _, x := range readFile(t, f) {
			seen[x.Token]++
		}
	}
	for i := range uint64(n) {
		if seen[i+1] != 1 {
			t.Fatalf("line %d is there %d times", i+1, seen[i+1])
		}
	}
	if l.Missing.Load() != 0 {
		t.Errorf("%d are missing", l.Missing.Load())
	}
}

// pipe makes a named pipe that is open and not read.
func pipe(t *testing.T) (path string, reader *os.File) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { reader.Close() })
	return path, reader
}

// keepsUp reports whether write takes the lines while the pipe is not read, within a time that only
// a writer that waits needs.
func keepsUp(write func(Line), lines int, within time.Duration) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range lines {
			write(Line{Event: Grant, Name: strings.Repeat("a", 512)})
		}
	}()
	select {
	case <-done:
		return true
	case <-time.After(within):
		return false
	}
}

// A directory that lets no other file be made: the lines go on in the renamed one, and the server's
// log says so, once.
func TestRotationWithoutANewFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	l, err := Open(filepath.Join(dir, "audit"), slog.New(slog.NewTextHandler(&said, nil)))
	if err != nil {
		t.Fatal(err)
	}
	l.Write(Line{Event: Grant, Name: "a", Token: 1})
	testkit.Eventually(t, "the first line", func() bool { return len(readFile(t, filepath.Join(dir, "audit"))) == 1 })
	if err := os.Rename(dir, dir+".old"); err != nil {
		t.Fatal(err)
	}
	l.Write(Line{Event: Release, Name: "a", Token: 1})
	l.Write(Line{Event: Grant, Name: "a", Token: 2})
	l.Close()
	if got := readFile(t, filepath.Join(dir+".old", "audit")); len(got) != 3 {
		t.Errorf("the lines: %+v", got)
	}
	if n := strings.Count(said.String(), "another cannot be made"); n != 1 {
		t.Errorf("said %d times: %s", n, said.String())
	}
}

// A pipe without a reader that reads blocks no Write. What is missing is counted, and told as soon as
// the pipe is read again.
func TestNeverWaits(t *testing.T) {
	const lines = 3 * room // more than fit anywhere
	path, reader := pipe(t)
	l := opened(t, path)
	if !keepsUp(l.Write, lines, testkit.Patience) {
		t.Fatal("Write waits for the pipe")
	}
	missing := l.Missing.Load()
	if missing < room {
		t.Fatalf("%d of %d lines are missing", missing, lines)
	}
	all := make(chan []Line, 1)
	go func() { all <- read(t, reader) }()
	testkit.Eventually(t, "an empty queue", func() bool { return len(l.lines) == 0 })
	l.Close()
	there, told := int64(0), int64(0)
	for _, x := range testkit.Await(t, "the end of the pipe", all) {
		if x.Event == dropped {
			told += x.Lines
		} else {
			there++
		}
	}
	if told != missing || there+told != lines {
		t.Errorf("%d lines and %d that are told to be missing, of %d; %d are counted", there, told, lines, missing)
	}

	// The control: a writer that waits is found.
	path, _ = pipe(t)
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() // ends the write that blocks
	if keepsUp(func(x Line) { _ = json.NewEncoder(f).Encode(x) }, lines, 3*time.Second) {
		t.Error("a writer that waits for the pipe is not found")
	}
}

// The end does not wait for a pipe either.
func TestCloseIsBounded(t *testing.T) {
	path, _ := pipe(t)
	l := opened(t, path)
	keepsUp(l.Write, room, testkit.Patience)
	ended := make(chan struct{})
	go func() { l.Close(); close(ended) }()
	testkit.Await(t, "the end", ended)
}

// A pipe without any reader, and a file that cannot be made, are refused at the start. Where no
// other file can be made after a rename, the one before goes on.
func TestCannotBeOpened(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mkfifo(dir+"/pipe", 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir + "/pipe", dir + "/no/file", dir} {
		if _, err := Open(path, slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("%s is opened", path)
		}
	}
	if err := os.Mkdir(dir+"/log", 0o700); err != nil {
		t.Fatal(err)
	}
	l := opened(t, dir+"/log/audit")
	if err := os.Rename(dir+"/log", dir+"/elsewhere"); err != nil {
		t.Fatal(err)
	}
	l.Write(Line{Event: Loss})
	l.Close()
	if all := readFile(t, dir+"/elsewhere/audit"); len(all) != 1 || l.Missing.Load() != 0 {
		t.Errorf("%+v, and %d missing", all, l.Missing.Load())
	}
}

// What a full disk refuses is counted, and told when there is room again, behind the line of which the disk
// took a part.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("hasp-test", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skip("only root can make a small disk: ", err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 32<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "audit")
	l := opened(t, path)
	const lines = 500
	for i := range uint64(lines) {
		l.Write(Line{Event: Grant, Name: strings.Repeat("a", 200), Token: i + 1})
	}
	testkit.Eventually(t, "lines to be refused", func() bool { return len(l.lines) == 0 && l.Missing.Load() > 100 })
	if err := os.Truncate(filler, 0); err != nil {
		t.Fatal(err)
	}
	l.Write(Line{Event: Loss})
	l.Close()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	whole, told, broken := int64(0), int64(0), 0
	for line := range strings.Lines(string(text)) {
		var x Line
		switch {
		case json.Unmarshal([]byte(line), &x) != nil:
			broken++
		case x.Event == dropped:
			told += x.Lines
		default:
			whole++
		}
	}
	if told != l.Missing.Load() || whole+told != lines+1 || broken > 1 || !strings.HasSuffix(string(text), "\"loss\"}\n") {
		t.Errorf("%d whole lines, %d broken, %d told to be missing of %d, %d counted:\n%.300s", whole, broken, told, lines, l.Missing.Load(), text[max(0, len(text)-300):])
	}
}

// What a line is. A change needs another number; a further field that readers may pass over does not.
func TestLineFormat(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l, held := opened(t, path), int64(1)
	l.Write(Line{Event: Grant, Name: "a", Client: "ci", Entry: "e", Token: 7, Held: &held, Reason: "r", Who: hasp.Owner{User: "ana", Host: "h", PID: 1}})
	l.Write(Line{Event: dropped, Lines: 3})
	l.Close()
	text := testkit.Must[[]byte](t)(os.ReadFile(path))
	text = regexp.MustCompile(`"time":"[^"]*"`).ReplaceAll(text, []byte(`"time":"TIME"`))
	testkit.SameFormat(t, "the audit", Format, []string{Release, Loss, Eviction, string(text)}, "00bc890dba393bab")
}
