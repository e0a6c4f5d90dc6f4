//go:build linux || darwin || freebsd

package filelock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/testkit"
	"golang.org/x/sys/unix"
)

// What people and programs do to the files of a store in use. Each must lead to a clear
// error and never to a second holder (S1).

// contenders are a holder and another client that were there before the damage.
type contenders struct {
	dir    string
	holder *hasp.Client
	lease  *hasp.Lease
	old    *hasp.Client
}

func held(t *testing.T) *contenders {
	t.Helper()
	return heldIn(t, storeDir(t))
}

func heldIn(t *testing.T, dir string) *contenders {
	t.Helper()
	c := &contenders{dir: dir}
	c.holder, c.old = testkit.Client(t, "file://"+c.dir), testkit.Client(t, "file://"+c.dir)
	var err error
	if c.lease, err = c.holder.Mutex("name").Lock(patient(t)); err != nil {
		t.Fatal(err)
	}
	// It knows the files already, and will not notice by opening them.
	if _, err := c.old.Mutex("name").TryLock(patient(t)); !errors.Is(err, hasp.ErrBusy) {
		t.Fatal(err)
	}
	return c
}

// refused makes sure that no client gets the lock, old or new, in any way, and that at least
// a new one is told why.
func (c *contenders) refused(t *testing.T, why string) {
	t.Helper()
	if _, err := c.old.Mutex("name").TryLock(patient(t)); err == nil {
		t.Error("a second holder, who was there before")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if _, err := c.old.Mutex("name").Lock(ctx); err == nil {
		t.Error("a second holder, who was there before and waited")
	}
	n, err := hasp.Open(patient(t), "file://"+c.dir)
	if err == nil {
		defer n.Close()
		_, err = n.Mutex("name").TryLock(patient(t))
	}
	if err == nil {
		t.Fatal("a second holder, who is new")
	}
	if !strings.Contains(err.Error(), why) {
		t.Errorf("the error does not say %q: %v", why, err)
	}
}

func (c *contenders) queueFile() string {
	return filepath.Join(c.dir, queuesDirName, fmt.Sprintf("%02x", newKey("name").file()))
}

func TestQueueFileRemoved(t *testing.T) {
	c := held(t)
	if err := os.Remove(c.queueFile()); err != nil {
		t.Fatal(err)
	}
	c.refused(t, "was removed")
	if !c.lease.Held() {
		t.Error("the holder lost what no other could get")
	}
	if err := c.lease.Release(patient(t)); err != nil {
		t.Errorf("release: %v", err)
	}
	// The cure the error names.
	c.holder.Close()
	c.old.Close()
	usable(t, c.dir)
}

// usable opens the store and goes through a lock, with a token above all before.
//
// Tests that call it are not parallel. A store is repaired when no process uses it, which flock
// tells; and a child that another test is about to start has all our descriptors until it
// executes its program.
func usable(t *testing.T, dir string) (token uint64) {
	t.Helper()
	c := testkit.Client(t, "file://"+dir)
	defer c.Close()
	l, err := c.Mutex("name").Lock(patient(t))
	if err != nil {
		t.Fatalf("the store is not usable: %v", err)
	}
	if err := l.Release(patient(t)); err != nil {
		t.Error(err)
	}
	return l.Token()
}

// With the name taken by something else, or by a copy.
func TestQueueFileReplaced(t *testing.T) {
	for what, replace := range map[string]func(path string) error{
		"garbage":   func(p string) error { return os.WriteFile(p, []byte("garbage"), 0o600) },
		"empty":     func(p string) error { return os.WriteFile(p, nil, 0o600) },
		"directory": func(p string) error { return os.Mkdir(p, 0o700) },
		"symlink":   func(p string) error { return os.Symlink(filepath.Dir(p)+"/00", p) },
		"link":      func(p string) error { return os.Link(filepath.Dir(p)+"/00", p) },
		"another": func(p string) error {
			b, err := os.ReadFile(filepath.Dir(p) + "/00")
			if err != nil {
				return err
			}
			return os.WriteFile(p, b, 0o600)
		},
	} {
		t.Run(what, func(t *testing.T) {
			c := held(t)
			if err := os.Rename(c.queueFile(), c.dir+".away"); err != nil {
				t.Fatal(err)
			}
			if err := replace(c.queueFile()); err != nil {
				t.Fatal(err)
			}
			c.refused(t, c.queueFile())
		})
	}
}

// A byte of the used part overwritten in place: the checksums notice, wherever it is.
func TestQueueFileOverwritten(t *testing.T) {
	for at := 0; at < headerSize+recordSize; at += 7 {
		c := held(t)
		f, err := os.OpenFile(c.queueFile(), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 1)
		if _, err := f.ReadAt(b, int64(at)); err != nil {
			t.Fatal(err)
		}
		b[0] ^= 0x5a
		if _, err := f.WriteAt(b, int64(at)); err != nil {
			t.Fatal(err)
		}
		f.Close()
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
		_, err = c.old.Mutex("name").TryLock(ctx)
		if !errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), "is damaged") {
			t.Fatalf("byte %d: %v", at, err)
		}
		// The holder cannot confirm its release, and must not wait for ever.
		if err := c.lease.Release(ctx); err == nil || ctx.Err() != nil {
			t.Fatalf("byte %d: release %v, %v", at, err, ctx.Err())
		}
		cancel()
		c.old.Close()
		c.holder.Close()
		usable(t, c.dir)
	}
}

func TestEverythingInsideRemoved(t *testing.T) {
	c := held(t)
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(c.dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	c.refused(t, "while other processes use it")
	token := c.lease.Token()
	c.holder.Close()
	c.old.Close()
	if again := usable(t, c.dir); again <= token {
		t.Errorf("token %d after %d", again, token)
	}
}

// The holder's session file is not the holder: removed, the entry stays, and its owner
// makes the file anew.
func TestSessionFilesRemoved(t *testing.T) {
	t.Parallel()
	c := held(t)
	before, err := filepath.Glob(c.dir + "/" + sessionsDirName + "/*")
	if err != nil || len(before) < 2 {
		t.Fatal(before, err)
	}
	for _, name := range before {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	c.refused(t, "busy")
	got := make(chan error, 1)
	go func() {
		l, err := c.old.Mutex("name").Lock(patient(t))
		if err == nil {
			err = l.Release(patient(t))
		}
		got <- err
	}()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		after, _ := filepath.Glob(c.dir + "/" + sessionsDirName + "/*")
		if len(after) >= len(before) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("session files %v, after they were removed %v", before, after)
		}
	}
	if err := c.lease.Release(patient(t)); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
}

// If the owner cannot make it anew, because it is dead as well, no process can know that. The
// waiter is told, and an operator can evict the entry.
func TestSessionFileRemovedThenKilled(t *testing.T) {
	defer func(d time.Duration) { missingTimeout = d }(missingTimeout)
	missingTimeout = time.Second
	dir := storeDir(t)
	b := openBackend(t, dir) // keeps the store in use: it is not repaired by the next to open
	p := start(t, job{Do: "hold", Dir: dir, Name: "name"})
	p.must("holds")
	files, err := filepath.Glob(dir + "/" + sessionsDirName + "/*")
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	if err := os.Remove(files[0]); err != nil {
		t.Fatal(err)
	}
	p.kill()
	s := openTestSession(t, dir)
	e := s.Ticket(mutexRequest("name", "waits")).(*ticket)
	for err == nil {
		_, err = e.Enqueue(patient(t))
		time.Sleep(blindRetry)
	}
	if !errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), "session file") {
		t.Fatalf("waiting for a mystery: %v", err)
	}
	list, err := b.List(patient(t), "name", 0)
	if err != nil || len(list) != 2 {
		t.Fatal(list, err)
	}
	if err := b.Evict(patient(t), "name", list[0].ID, ""); err != nil {
		t.Fatal(err)
	}
	proceeds(t, e)
}

// The directory is renamed, removed, or replaced by a link or by another: the holder is
// told, and those who come are refused or are in another store.
func TestDirectoryMoved(t *testing.T) {
	for what, move := range map[string]func(dir string) error{
		"removed": os.RemoveAll,
		"renamed": func(dir string) error { return os.Rename(dir, dir+".away") },
		"symlink": func(dir string) error {
			if err := os.Rename(dir, dir+".away"); err != nil {
				return err
			}
			return os.Symlink(dir+".away", dir)
		},
		"replaced": func(dir string) error {
			if err := os.Rename(dir, dir+".away"); err != nil {
				return err
			}
			return os.Mkdir(dir, 0o700)
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c := held(t)
			if err := move(c.dir); err != nil {
				t.Fatal(err)
			}
			select {
			case <-c.lease.Context().Done():
			case <-time.After(patience):
				t.Fatal("the holder was never told")
			}
			if err := c.lease.Err(); !errors.Is(err, hasp.ErrLost) || !strings.Contains(err.Error(), "removed, moved or replaced") {
				t.Errorf("lost because of %v", err)
			}
			if what == "symlink" {
				time.Sleep(upkeepEvery) // until then an old client may lock in the old place
				c.refused(t, "not a symbolic link")
				return
			}
			// From here on it is a new store, for old and new clients.
			l, err := testkit.Client(t, "file://"+c.dir).Mutex("name").Lock(patient(t))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.old.Mutex("name").TryLock(patient(t)); !errors.Is(err, hasp.ErrBusy) {
				t.Errorf("an old client in the new store: %v", err)
			}
			if l.Token() <= c.lease.Token() {
				t.Errorf("token %d after %d", l.Token(), c.lease.Token())
			}
		})
	}
}

// Another program has a flock on the directory, or a hasp was killed before it had prepared the
// store. One that finds the store incomplete meanwhile prepares it as soon as it can: it is not
// damaged. That it was the exclusive flock is one moment's difference, between two system calls;
// this is the same with a shared one.
func TestIncompleteStoreIsPrepared(t *testing.T) {
	defer func(n int) { incompleteTries = n }(incompleteTries)
	incompleteTries = 1e6
	dir := filepath.Join(t.TempDir(), "store")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	foreign, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(foreign.Fd()), unix.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	opened := make(chan error, 1)
	go func() {
		c, err := hasp.Open(patient(t), "file://"+dir)
		if err == nil {
			err = c.Close()
		}
		opened <- err
	}()
	select {
	case err := <-opened:
		t.Fatalf("opened while another program has a flock on a directory that is no store yet: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	if err := foreign.Close(); err != nil {
		t.Fatal(err)
	}
	if err := testkit.Await(t, "the store", opened); err != nil {
		t.Error(err)
	}
}
