package filelock

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hasplock/hasp/driver"
)

// An entry is in the queue, and the next look at the file fails: that is no refusal, after which
// the core would leave the entry where it is.
func TestErrorBehindEntry(t *testing.T) {
	t.Parallel()
	s := openTestSession(t, storeDir(t))
	e := s.Ticket(mutexRequest("name", "entered")).(*ticket)
	q := e.file
	swap := func(fd int) (old int) {
		q.mutex <- struct{}{}
		defer func() { <-q.mutex }()
		old, q.fd = q.fd, fd
		return old
	}
	bad, err := unix.Open("/dev/null", unix.O_PATH|unix.O_CLOEXEC, 0) // which nothing can be done with
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(bad)
	old := swap(bad)
	if _, err := e.Enqueue(patient(t)); !errors.Is(err, driver.ErrRefused) {
		t.Errorf("before there is an entry: %v", err)
	}
	swap(old)
	proceeds(t, e)
	swap(bad)
	if _, err := e.Enqueue(patient(t)); err == nil || errors.Is(err, driver.ErrRefused) {
		t.Errorf("when there is an entry: %v", err)
	}
	swap(old)
	leave(t, e)
}

// A full disk refuses entries that need space, and neither the release of those there are
// nor an eviction, of which no note is kept then.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mount("hasp-test", dir, "tmpfs", 0, "size=512k"); err != nil {
		t.Skip("only root can make a small disk: ", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	s := openTestSession(t, dir+"/store")
	before := s.Ticket(mutexRequest("name", "before")).(*ticket)
	if _, err := before.Enqueue(patient(t)); err != nil {
		t.Fatal(err)
	}
	stuck := s.Ticket(mutexRequest("stuck", "stuck")).(*ticket)
	if _, err := stuck.Enqueue(patient(t)); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(dir + "/filler")
	if err != nil {
		t.Fatal(err)
	}
	for size := 64 << 10; size > 0; {
		if _, err := f.Write(make([]byte, size)); errors.Is(err, unix.ENOSPC) {
			size /= 2
		} else if err != nil {
			t.Fatal(err)
		}
	}
	f.Close()
	large := mutexRequest("name", "large")
	large.Value = make([]byte, maxValue)
	e := s.Ticket(large).(*ticket)
	if _, err := e.Enqueue(patient(t)); !errors.Is(err, driver.ErrRefused) || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("an entry on a full disk: %v", err)
	}
	if err := openBackend(t, dir+"/store").Evict(patient(t), "stuck", "stuck", strings.Repeat("n", maxNote)); err != nil {
		t.Errorf("an eviction on a full disk: %v", err)
	}
	wantNote(t, dir+"/store", "stuck", "")
	leave(t, before)
	if err := os.Remove(dir + "/filler"); err != nil {
		t.Fatal(err)
	}
	proceeds(t, e)
	leave(t, e)
}
