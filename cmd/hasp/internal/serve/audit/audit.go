// Package audit writes a line of JSON for each lock that is granted, given back, lost or taken away.
// No lock waits for the file: what a slow or full disk does not take is dropped, and counted.
package audit

import (
	"encoding/json"
	"log/slog"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hasplock/hasp"
)

// The events of a Line.
const Grant, Release, Loss, Eviction, dropped = "grant", "release", "loss", "eviction", "dropped"

// Format is the version of the lines, and in each: the file of a server goes on after its update.
const Format = 1

// Line is one of the file. It has no id of a session, which is the key to its locks.
type Line struct {
	Format int        `json:"format"`
	Time   time.Time  `json:"time"`
	Event  string     `json:"event"`
	Name   string     `json:"name,omitempty"`
	Who    hasp.Owner `json:"who,omitzero"`     // as a client says; of an eviction, who has done it
	Client string     `json:"client,omitempty"` // the name of its token at the server
	Entry  string     `json:"entry,omitempty"`
	Token  uint64     `json:"token,omitempty"` // the fencing token
	Held   *int64     `json:"held_ms,omitempty"`
	Reason string     `json:"reason,omitempty"`
	Lines  int64      `json:"lines,omitempty"` // of dropped
}

const room = 4096 // lines that wait for a slow disk: some 2 MB

// Log is the file and its only writer.
type Log struct {
	path    string
	log     *slog.Logger
	lines   chan Line
	Missing atomic.Int64 // lines that were dropped
	ended   chan struct{}
}

// Open begins to append to a file. It refuses one that cannot be written.
func Open(path string, log *slog.Logger) (*Log, error) {
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	l := &Log{path: path, log: log, lines: make(chan Line, room), ended: make(chan struct{})}
	go l.write(f)
	return l, nil
}

// open does not wait for the reader of a named pipe.
func open(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NONBLOCK, 0o600)
}

// Write takes a line, or drops it. It never waits. A nil Log takes none.
func (l *Log) Write(x Line) {
	if l == nil {
		return
	}
	x.Time = time.Now()
	select {
	case l.lines <- x:
	default:
		l.Missing.Add(1)
	}
}

// Close writes what waits, and does not wait for long itself.
func (l *Log) Close() {
	l.Write(Line{}) // without an event: the last
	select {
	case <-l.ended:
	case <-time.After(2 * time.Second):
	}
}

func (l *Log) write(f *os.File) {
	defer close(l.ended)
	defer func() { _ = f.Close() }() // each line was written at once
	info, _ := f.Stat()              // for os.SameFile, which takes nil as another
	reported, torn, failing, stale := int64(0), false, false, false
	put := func(x Line) bool {
		x.Format = Format
		text, _ := json.Marshal(x) // strings and numbers
		if torn {                  // a full disk took a part of the line before
			text = append([]byte("\n"), text...)
		}
		n, err := f.Write(append(text, '\n'))
		torn = err != nil && (torn || n > 0)
		if err != nil && !failing {
			l.log.Error("the audit file cannot be written", slog.Any("error", err))
		}
		failing = err != nil
		return err == nil
	}
	for x := range l.lines {
		if now, err := os.Stat(l.path); err != nil || !os.SameFile(now, info) { // it was renamed
			next, err := open(l.path)
			switch {
			case err == nil:
				_ = f.Close()
				f, torn = next, false
				info, _ = f.Stat()
			case !stale: // the lines go to the old one, until there is a new one
				l.log.Error("the audit file was renamed, and goes on in the old one: another cannot be made", slog.Any("error", err))
			}
			stale = err != nil
		}
		if n := l.Missing.Load() - reported; n > 0 && put(Line{Time: time.Now(), Event: dropped, Lines: n}) {
			reported += n
			l.log.Error("lines of the audit are missing: the disk was too slow, or full", slog.Int64("lines", n))
		}
		if x.Event == "" {
			return
		}
		if !put(x) {
			l.Missing.Add(1)
		}
	}
}
