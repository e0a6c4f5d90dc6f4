//go:build linux || darwin || freebsd

package filelock

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
)

// evicts enters and evicts with a note.
func evicts(t *testing.T, dir, name, note string) {
	t.Helper()
	s := openTestSession(t, dir)
	if _, err := s.Ticket(mutexRequest(name, "evicted")).Enqueue(patient(t)); err != nil {
		t.Fatal(err)
	}
	if err := openBackend(t, dir).Evict(patient(t), name, "evicted", note); err != nil {
		t.Fatalf("evict: %v", err)
	}
	if left := listIDs(t, s, name); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

func wantNote(t *testing.T, dir, name, want string) {
	t.Helper()
	b := openBackend(t, dir)
	defer b.Close()
	if got, err := b.LastEviction(patient(t), name); err != nil || got != want {
		t.Errorf("last eviction from %.20q: %.20q, %v, want %.20q", name, got, err, want)
	}
}

func noteFile(dir, name string) string { return filepath.Join(dir, notesDir, noteName(newKey(name))) }

// age makes a file as old as it would be after that time.
func age(t *testing.T, file string, by time.Duration) {
	t.Helper()
	old := time.Now().Add(-by)
	if err := os.Chtimes(file, old, old); err != nil {
		t.Fatal(err)
	}
}

func gone(file string) bool {
	_, err := os.Stat(file)
	return os.IsNotExist(err)
}

// Each name has a separate note, however long the name and the note are.
func TestNotesOfLongNames(t *testing.T) {
	t.Parallel()
	dir := storeDir(t)
	long := strings.Repeat("Ä", 255)
	notes := map[string]string{long + "x": strings.Repeat("n", maxNote), long + "y": "short", "a": "b", "A": "c", "a/../b": "d"}
	for name, note := range notes {
		evicts(t, dir, name, note)
	}
	for name, note := range notes {
		wantNote(t, dir, name, note)
	}
	err := openBackend(t, dir).Evict(patient(t), "a", "nothing", strings.Repeat("n", maxNote+1))
	if !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a note that is too long: %v", err)
	}
}

// A note is forgotten after a day, and its file is removed in passing, by a process that has the
// store to itself or by a sweep; a younger one stays, also while no process uses the store,
// and so does what is not ours. It is not parallel, for the reason that usable gives.
func TestNotesAreForgotten(t *testing.T) {
	for _, inUse := range []bool{false, true} {
		dir := storeDir(t)
		t.Run(map[bool]string{false: "alone", true: "in use"}[inUse], func(t *testing.T) {
			evicts(t, dir, "old", "note")
			evicts(t, dir, "young", "note")
		})
		if inUse {
			openTestSession(t, dir)
			age(t, filepath.Join(dir, formatFile), sweepEvery+time.Minute)
		}
		fresh, strange := filepath.Join(dir, notesDir, freshNote(newKey("old"))), filepath.Join(dir, notesDir, "README")
		for _, file := range []string{fresh, strange} {
			if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		age(t, noteFile(dir, "young"), noteTTL-time.Hour)
		for _, file := range []string{noteFile(dir, "old"), fresh, strange} {
			age(t, file, noteTTL+time.Minute)
		}
		if inUse {
			wantNote(t, dir, "old", "") // it is not swept yet
			if _, err := os.Stat(noteFile(dir, "old")); err != nil {
				t.Error(err)
			}
		}
		openTestSession(t, dir)
		// A sweep has a quarter of a second; on a busy machine the next one goes on.
		for range 20 {
			if !inUse || gone(noteFile(dir, "old")) && gone(fresh) {
				break
			}
			age(t, filepath.Join(dir, formatFile), sweepEvery+time.Minute)
			openTestSession(t, dir)
		}
		wantNote(t, dir, "old", "")
		wantNote(t, dir, "young", "note")
		for file, there := range map[string]bool{noteFile(dir, "old"): false, fresh: false, noteFile(dir, "young"): true, strange: true} {
			if _, err := os.Stat(file); (err == nil) != there {
				t.Errorf("store in use: %t: %s: %v", inUse, file, err)
			}
		}
	}
}

// Between the look at an old note and its removal another client evicts from the same name: the
// new note stays. Without it the file goes.
func TestForgettingSparesTheNewNote(t *testing.T) {
	t.Parallel()
	for _, replaced := range []bool{true, false} {
		dir := storeDir(t)
		evicts(t, dir, "name", "old")
		age(t, noteFile(dir, "name"), noteTTL+time.Minute)
		s, err := openBackend(t, dir).use(patient(t))
		if err != nil {
			t.Fatal(err)
		}
		defer s.leave()
		sections := 0
		if err := s.access.removeOldNotes(s.root, func(file int, do func()) error {
			sections++
			if file != newKey("name").file() {
				t.Errorf("in the critical section of file %d", file)
			}
			if replaced {
				evicts(t, dir, "name", "new")
			}
			do()
			return nil
		}); err != nil || sections != 1 {
			t.Errorf("%d critical sections, %v", sections, err)
		}
		if _, err := os.Stat(noteFile(dir, "name")); (err == nil) != replaced {
			t.Errorf("replaced: %t: %v", replaced, err)
		}
	}
}

// Where no note can be kept, an eviction is done without.
func TestEvictWithoutNote(t *testing.T) {
	t.Parallel()
	dir := storeDir(t)
	openBackend(t, dir)
	for what, spoil := range map[string]func(string) error{
		"no directory":      func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"one for everybody": func(path string) error { return errors.Join(os.Mkdir(path, 0o700), os.Chmod(path, 0o777)) },
	} {
		openTestSession(t, dir)
		path := filepath.Join(dir, notesDir)
		if err := spoil(path); err != nil {
			t.Fatal(err)
		}
		evicts(t, dir, "name", "note")
		if _, err := openBackend(t, dir).LastEviction(patient(t), "name"); err == nil {
			t.Errorf("%s: no word of it", what)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	wantNote(t, dir, "name", "")
	evicts(t, dir, "name", "note")
	wantNote(t, dir, "name", "note")
}
