//go:build linux || darwin || freebsd

package filelock

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hasplock/hasp/driver"
)

// Who evicted last and why is kept for a day, in a file for each name: evictions are rare,
// and a note of up to 4 KB does not fit into a queue file, where an entry is all there is of
// a name. Nothing depends on these files. Everything is done in the critical section of the
// name's queue file, whose number its file's name begins with:
//
//	NN-NAME  a note
//	NN+      one that is being written; its author may have died
const (
	notesDir    = "e" // made with the first note
	noteTTL     = 24 * time.Hour
	maxNote     = 4096
	maxNoteName = 200 // of the 255 bytes that a file's name may have
)

func noteName(k key) string {
	encoded, _ := driver.EncodeName(k.name, maxNoteName)
	return fmt.Sprintf("%02x-%s", k.file(), encoded)
}

func freshNote(k key) string { return fmt.Sprintf("%02x+", k.file()) }

// parseNoteName says that a file belongs to the notes, and in which critical section.
func parseNoteName(name string) (file int, ok bool) {
	if len(name) < 3 || name[2] != '-' && name[2] != '+' {
		return 0, false
	}
	n, err := strconv.ParseUint(name[:2], 16, 8)
	return int(n), err == nil && n < queueFiles
}

var errNoNote = errors.New("there is no note")

// writeNote prepares a note. It does not replace an older one yet.
func (a access) writeNote(root int, k key, note string) error {
	if note == "" {
		return errNoNote
	}
	if err := a.makeDir(root, notesDir); err != nil {
		return err
	}
	dir, err := a.openDir(root, notesDir)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	fresh := freshNote(k)
	if err := unix.Unlinkat(dir, fresh, 0); err != nil && err != unix.ENOENT {
		return err
	}
	noteProbe()
	fd, err := a.openFile(dir, fresh, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	n, err := unix.Pwrite(fd, []byte(note), 0)
	if err == nil && n < len(note) {
		err = io.ErrShortWrite
	}
	return err
}

// keepNote makes what writeNote has prepared the note of the name.
func (a access) keepNote(root int, k key) error {
	dir, err := a.openDir(root, notesDir)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	noteProbe()
	return unix.Renameat(dir, freshNote(k), dir, noteName(k))
}

// noteProbe counts as a write for tests that die at each (see probe).
func noteProbe() {
	if f := probe.Load(); f != nil {
		(*f)(true)
	}
}

// readNote returns "" if there is none, or an old one that is only still to be removed.
func (a access) readNote(root int, k key) (string, error) {
	dir, err := a.openDir(root, notesDir)
	if err != nil {
		return "", unlessMissing(err)
	}
	defer unix.Close(dir)
	fd, err := a.openNote(dir, noteName(k))
	if err != nil {
		return "", unlessMissing(err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || isOld(&st) {
		return "", err
	}
	b := make([]byte, maxNote)
	n, err := pread(fd, b, 0)
	return string(b[:n]), err
}

// unlessMissing is nil where there is no such file.
func unlessMissing(err error) error {
	if err == unix.ENOENT {
		return nil
	}
	return err
}

// isOld goes by the wall clock. If that is set, a note stays for longer or shorter.
func isOld(st *unix.Stat_t) bool { return time.Since(time.Unix(st.Mtim.Unix())) > noteTTL }

// removeOldNotes removes old notes, and what has never become one. section runs do in the
// critical section of a queue file: an eviction may replace the old note at this moment,
// and the new one must stay.
func (a access) removeOldNotes(root int, section func(file int, do func()) error) error {
	dir, err := a.openDir(root, notesDir)
	if err != nil {
		return unlessMissing(err)
	}
	defer unix.Close(dir)
	names, err := readDir(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		file, ok := parseNoteName(name)
		old := func() bool {
			var st unix.Stat_t
			return unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && isOld(&st)
		}
		if !ok || !old() {
			continue
		}
		if err := section(file, func() {
			if old() {
				_ = unix.Unlinkat(dir, name, 0) // the next one tries again
			}
		}); err != nil {
			return err
		}
	}
	return nil
}
