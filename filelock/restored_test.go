//go:build linux || darwin || freebsd

package filelock

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/testkit"
)

// What backups do to a store: files that come back as they once were, copies of the whole
// directory, and hard links to its files. A copy of a queue file is whole, and all its
// checksums are right; what it lacks are the entries of those who hold.

// beforeHeld is a holder, and the queue file as it was before it held.
func beforeHeld(t *testing.T) (*contenders, []byte) {
	t.Helper()
	dir := storeDir(t)
	usable(t, dir)
	c := &contenders{dir: dir}
	backup, err := os.ReadFile(c.queueFile())
	if err != nil {
		t.Fatal(err)
	}
	return heldIn(t, dir), backup
}

// S1: an older copy that takes the place of a queue file shows an empty queue. A process that opens
// it must see that it is not the file in which the others hold.
func TestQueueFileRestored(t *testing.T) {
	for what, restore := range map[string]func(path string, backup []byte) error{
		"removed and written": func(p string, b []byte) error {
			return errors.Join(os.Remove(p), os.WriteFile(p, b, 0o600))
		},
		"renamed over": func(p string, b []byte) error {
			return errors.Join(os.WriteFile(p+".new", b, 0o600), os.Rename(p+".new", p))
		},
		"moved away and written": func(p string, b []byte) error {
			return errors.Join(os.Rename(p, filepath.Dir(filepath.Dir(p))+".away"), os.WriteFile(p, b, 0o600))
		},
		"with all of its directory": func(p string, b []byte) error {
			q := filepath.Dir(p)
			err := os.Rename(q, filepath.Dir(q)+".away")
			return errors.Join(err, os.CopyFS(q, os.DirFS(filepath.Dir(q)+".away")), os.WriteFile(p, b, 0o600), private(q))
		},
	} {
		t.Run(what, func(t *testing.T) {
			c, backup := beforeHeld(t)
			if err := restore(c.queueFile(), backup); err != nil {
				t.Fatal(err)
			}
			c.refused(t, c.queueFile())
			if !c.lease.Held() {
				t.Error("the holder lost what no other could get")
			}
			token := c.lease.Token()
			c.holder.Close()
			c.old.Close()
			if again := usable(t, c.dir); again <= token {
				t.Errorf("repaired, with token %d after %d", again, token)
			}
		})
	}
}

// private gives the files of a copy the modes that the store's have.
func private(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			err = os.Chmod(path, 0o700)
		}
		return err
	})
}

// An older copy that is written into the file itself cannot be told from it by a process that is
// new. One that knew the file refuses it, and the holder is told before long, also if another
// new has carried the file on by then.
func TestQueueFileRestoredInPlace(t *testing.T) {
	for _, newcomer := range []bool{false, true} {
		c, backup := beforeHeld(t)
		if err := os.WriteFile(c.queueFile(), backup, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := c.old.Mutex("name").TryLock(patient(t)); err == nil || !strings.Contains(err.Error(), "older copy") {
			t.Errorf("the client that knew the file: %v", err)
		}
		if newcomer {
			if token := usable(t, c.dir); token <= c.lease.Token() {
				t.Errorf("token %d after %d", token, c.lease.Token())
			}
		}
		select {
		case <-c.lease.Context().Done():
		case <-time.After(patience):
			t.Fatal("the holder was never told")
		}
		if err := c.lease.Release(patient(t)); !errors.Is(err, hasp.ErrLost) {
			t.Errorf("release: %v", err)
		}
		for _, client := range []*hasp.Client{c.holder, c.old} { // no process needs to be ended for it
			l, err := client.Mutex("name").Lock(patient(t))
			for err != nil && strings.Contains(err.Error(), "older copy") && t.Context().Err() == nil {
				l, err = client.Mutex("name").Lock(patient(t)) // until all in this process are told
			}
			if err != nil || l.Token() <= c.lease.Token() {
				t.Fatalf("afterwards: %v", err)
			}
			if err := l.Release(patient(t)); err != nil {
				t.Error(err)
			}
		}
	}
}

// A file that goes back while its name is held is not the only one that must be looked at:
// who holds elsewhere goes on.
func TestRestoredInPlaceSparesOthers(t *testing.T) {
	c, backup := beforeHeld(t)
	other := "another"
	if newKey(other).file() == newKey("name").file() {
		t.Fatal("choose a name of another file")
	}
	l, err := c.holder.Mutex(other).Lock(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.queueFile(), backup, 0); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.lease.Context().Done():
	case <-time.After(patience):
		t.Fatal("the holder was never told")
	}
	if !l.Held() {
		t.Errorf("lost with it: %v", l.Err())
	}
	if err := l.Release(patient(t)); err != nil {
		t.Error(err)
	}
}

// linked makes dir a copy of a store by hard links, as cp -al does.
func linked(t *testing.T, store, dir string) {
	t.Helper()
	err := filepath.WalkDir(store, func(path string, d fs.DirEntry, err error) error {
		to := dir + strings.TrimPrefix(path, store)
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return os.Mkdir(to, 0o700)
		}
		return os.Link(path, to)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Hard links to the files of a store, by which some backups are made, disturb no lock in it;
// and the copy is another store as soon as it is used as one.
func TestHardLinks(t *testing.T) {
	c := held(t)
	if err := c.holder.Evict(patient(t), "unused", "nothing", "no note is made"); !errors.Is(err, hasp.ErrNotFound) {
		t.Fatal(err)
	}
	twin := c.dir + ".twin"
	linked(t, c.dir, twin)
	time.Sleep(upkeepEvery + upkeepEvery/2) // until then no process looks
	if _, err := c.old.Mutex("name").TryLock(patient(t)); !errors.Is(err, hasp.ErrBusy) {
		t.Errorf("in the store: %v", err)
	}
	n := testkit.Client(t, "file://"+c.dir)
	if l, err := n.Mutex("another").TryLock(patient(t)); err != nil {
		t.Errorf("a newcomer: %v", err)
	} else if err := l.Release(patient(t)); err != nil {
		t.Error(err)
	}
	n.Close()
	own := testkit.Client(t, "file://"+twin)
	l, err := own.Mutex("name").Lock(patient(t))
	if err != nil {
		t.Fatalf("the copy is not usable: %v", err)
	}
	if _, err := c.old.Mutex("name").TryLock(patient(t)); !errors.Is(err, hasp.ErrBusy) || !c.lease.Held() {
		t.Errorf("in the store, whose copy is used: %v, held %t", err, c.lease.Held())
	}
	if err := c.lease.Release(patient(t)); err != nil {
		t.Error(err)
	}
	if _, err := testkit.Client(t, "file://"+twin).Mutex("name").TryLock(patient(t)); !errors.Is(err, hasp.ErrBusy) || !l.Held() {
		t.Errorf("in the copy: %v, held %t", err, l.Held())
	}
	for _, closes := range []*hasp.Client{c.holder, c.old} {
		closes.Close()
	}
	linked(t, c.dir, c.dir+".third")
	usable(t, c.dir) // it was empty when the links were made
}

// A copy of the directory is another store, with tokens above those of the original.
func TestCopied(t *testing.T) {
	c := held(t)
	twin := c.dir + ".twin"
	if err := os.Mkdir(twin, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{formatFile, queuesDirName} {
		if err := copyTree(filepath.Join(c.dir, part), filepath.Join(twin, part)); err != nil {
			t.Fatal(err)
		}
	}
	if token := usable(t, twin); token <= c.lease.Token() {
		t.Errorf("token %d after %d", token, c.lease.Token())
	}
	if !c.lease.Held() {
		t.Errorf("lost: %v", c.lease.Err())
	}
}

func copyTree(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return errors.Join(os.CopyFS(to, os.DirFS(from)), private(to))
	}
	b, err := os.ReadFile(from)
	return errors.Join(err, os.WriteFile(to, b, 0o600))
}

// A file that another thing has replaced is made anew by the first to
// have the store to itself, with tokens that go on.
func TestPrepareRepairs(t *testing.T) {
	for what, damage := range map[string]func(path string) error{
		"removed":         os.Remove,
		"truncated":       func(p string) error { return os.Truncate(p, 100) },
		"symlink":         func(p string) error { return errors.Join(os.Remove(p), os.Symlink("/dev/null", p)) },
		"fifo":            func(p string) error { return errors.Join(os.Remove(p), unix.Mkfifo(p, 0o600)) },
		"directory":       func(p string) error { return errors.Join(os.Remove(p), os.Mkdir(p, 0o700)) },
		"of another user": func(p string) error { return os.Chown(p, 12345, -1) },
		"all of another user": func(p string) error { // as root restores a backup
			return errors.Join(os.Chown(p, 12345, -1), os.Chown(filepath.Dir(filepath.Dir(p))+"/"+formatFile, 12345, -1))
		},
	} {
		t.Run(what, func(t *testing.T) {
			dir := storeDir(t)
			token := usable(t, dir)
			if err := damage((&contenders{dir: dir}).queueFile()); errors.Is(err, os.ErrPermission) {
				t.Skip("only root can do this: ", err)
			} else if err != nil {
				t.Fatal(err)
			}
			if again := usable(t, dir); again <= token {
				t.Errorf("token %d after %d", again, token)
			}
		})
	}
}

// A session file that was removed is missed although a hard link keeps it in being.
func TestSessionFileRemovedWithLink(t *testing.T) {
	c := held(t)
	linked(t, c.dir, c.dir+".twin")
	files, err := filepath.Glob(c.dir + "/" + sessionsDirName + "/*")
	if err != nil || len(files) < 2 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		after, _ := filepath.Glob(c.dir + "/" + sessionsDirName + "/*")
		if len(after) > 0 {
			break
		}
		if ctx.Err() != nil {
			t.Fatal("the holder's session file was never made anew")
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err := c.lease.Release(patient(t)); err != nil {
		t.Error(err)
	}
}

// Several find out at once that a file has gone back. The first of them to be through lets others
// in, and the last must not take those for losers.
func TestRestoredInPlaceSparesNewcomers(t *testing.T) {
	for range 10 {
		if sparesNewcomers(t) {
			return
		}
	}
	t.Fatal("the client that knew the file has never seen that it has gone back")
}

// locks enters, and fails if it does not hold at once.
func locks(t *testing.T, s *session, id string) error {
	t.Helper()
	v, err := s.Ticket(mutexRequest("name", id)).Enqueue(patient(t))
	if err == nil && !v.Held {
		err = errors.New("it waits")
	}
	return err
}

// sparesNewcomers reports whether the one that knew the file has compared it before what it knew
// was taken from it: on a busy machine it may be late.
func sparesNewcomers(t *testing.T) (compared bool) {
	t.Helper()
	b := openBackend(t, storeDir(t))
	lost := make(chan string, 10)
	open := func() *session {
		t.Helper()
		s, _, err := b.Open(patient(t), driver.SessionOptions{Gone: func(id string, _ error) { lost <- id }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close(context.Background()) })
		return s.(*session)
	}
	holder, newcomer := open(), open()
	q := holder.store.file(newKey("name"))
	backup, err := os.ReadFile(q.name)
	if err != nil {
		t.Fatal(err)
	}
	if err := locks(t, holder, "old"); err != nil {
		t.Fatal(err)
	}
	var others []*session // one of which is looked through before the newcomer, by all chance
	for range 20 {
		others = append(others, open())
	}
	if err := os.WriteFile(q.name, backup, 0); err != nil {
		t.Fatal(err)
	}
	for _, o := range others {
		o.mu.Lock() // a call that looks through them stops there
	}
	found, entered := make(chan error, 1), make(chan error, 1)
	go func() { found <- q.lock(patient(t)) }()
	time.Sleep(100 * time.Millisecond)
	q.last.Store(0) // by another who has found the same, and is through
	go func() { entered <- locks(t, newcomer, "new") }()
	time.Sleep(100 * time.Millisecond)
	for _, o := range others {
		o.mu.Unlock()
	}
	switch err := <-found; {
	case err == nil:
		q.unlock()
		<-entered
		return false
	case !strings.Contains(err.Error(), "older copy"):
		t.Fatalf("the client that knew the file: %v", err)
	}
	if err := <-entered; err != nil {
		t.Fatalf("the newcomer: %v", err)
	}
	close(lost)
	for id := range lost {
		if id != "old" {
			t.Errorf("%s was told that it is gone", id)
		}
	}
	return true
}
