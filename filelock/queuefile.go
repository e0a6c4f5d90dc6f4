//go:build linux || darwin || freebsd

package filelock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// queueFile is one queue file, as this process has it open. Its descriptor is opened once and
// kept: closing any descriptor would not hurt (flock belongs to the open file), but
// opening costs more than everything else in a lock.
//
// lock and unlock enclose a critical section among all processes; the other methods, here
// and in queue.go, are for inside.
type queueFile struct {
	store *store
	n     int
	name  string        // for messages
	mutex chan struct{} // full while locked: flock does not tell the goroutines of a process apart
	fd    int           // -1 before the first use and after close; guarded by mutex

	// What load has read, which holds until unlock: pages has the header and the records, and a
	// page of it is one of memory (see layout.go on why a write must not come from two), because
	// Go aligns allocations of such sizes.
	pages   []byte
	records []record
	found   []*record // room for queue
	page    []byte    // room for details

	identity   fileIdentity // of what fd is
	lastIntact time.Time    // when the file was last found to be intact

	last atomic.Uint64 // the highest seq that this process has seen in it
}

func newQueueFile(s *store, n int) *queueFile {
	return &queueFile{store: s, n: n, name: fmt.Sprintf("%s/q/%02x", s.path, n), mutex: make(chan struct{}, 1), fd: -1}
}

// lock begins a critical section. A process that was stopped inside its own cannot be
// told from a slow one, and all must wait for it; but not beyond ctx (L3).
func (q *queueFile) lock(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case q.mutex <- struct{}{}:
	default:
		select {
		case q.mutex <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	err := q.begin(ctx)
	if err == nil {
		return nil
	}
	var d *damageError
	if !errors.As(err, &d) || !d.restored {
		<-q.mutex
		return err
	}
	held := q.store.heldIn(q) // before any process can be granted something in what is there now
	<-q.mutex
	q.store.dropRestored(q, held, err)
	return err
}

func (q *queueFile) begin(ctx context.Context) error {
	if q.fd < 0 {
		if err := q.open(); err != nil {
			return err
		}
	}
	if err := flock(ctx, q.fd, unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", q.name, err)
	}
	if err := q.load(); err != nil {
		q.release()
		return err
	}
	return nil
}

func (q *queueFile) unlock() {
	q.release()
	<-q.mutex
}

func (q *queueFile) release() {
	_ = unix.Flock(q.fd, unix.LOCK_UN) // it fails on a bad descriptor only
}

// flock waits for a lock on an open file. It asks instead of blocking: a blocked flock
// keeps a thread and cannot be cancelled. A critical section takes a few microseconds, so
// asking some more times is mostly enough; then pauses, short ones first, since Go's own
// timers are a thousand times coarser.
func flock(ctx context.Context, fd int, how int) error {
	pause := 10 * time.Microsecond
	for tries := 0; ; tries++ {
		err := unix.Flock(fd, how|unix.LOCK_NB)
		if err == nil || err != unix.EWOULDBLOCK && err != unix.EINTR {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		switch {
		case tries < 20:
		case pause < time.Millisecond:
			sleepBriefly(pause)
			pause *= 2
		default:
			time.Sleep(pause)
			pause = min(2*pause, 4*time.Millisecond)
		}
	}
}

// open opens the file and makes sure that it is the one prepare has made.
func (q *queueFile) open() error {
	if q.store.closed.Load() {
		return errStoreClosed
	}
	flags := unix.O_RDWR
	if q.store.access.look {
		flags = unix.O_RDONLY // flock is content with it
	}
	fd, err := q.store.access.openFile(q.store.queuesDir, fmt.Sprintf("%02x", q.n), flags)
	if errors.Is(err, unix.ENOENT) {
		return &damageError{file: q.name, what: "it was removed"}
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", q.name, err)
	}
	at, err := fileIdentityOf(q.store.root, fd)
	if err != nil {
		_ = unix.Close(fd)
		return fmt.Errorf("stat %s: %w", q.name, err)
	}
	q.pages, q.page = make([]byte, 2*pageSize), make([]byte, pageSize)
	q.fd, q.identity, q.lastIntact = fd, at, time.Time{}
	q.last.Store(0)
	return nil
}

// close waits only for goroutines in a critical section of this file.
func (q *queueFile) close() {
	q.mutex <- struct{}{}
	if q.fd >= 0 {
		_ = unix.Close(q.fd) // nothing is buffered
		q.fd = -1
	}
	<-q.mutex
}

// intact refuses to go on in a file that has lost its name: processes that come later could not see
// what is in it. The holders go on holding, since no other process gets in: no file is made anew
// while any process uses the store, and a copy under the name does not have the identity. For the
// same reason it is enough to look every now and then. Other names of the file, as backups by hard
// links make them, do no harm.
func (q *queueFile) intact() error {
	now := time.Now()
	if now.Sub(q.lastIntact) < upkeepEvery {
		return nil
	}
	var st unix.Stat_t
	err := unix.Fstatat(q.store.queuesDir, fmt.Sprintf("%02x", q.n), &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, unix.ENOENT):
		return &damageError{file: q.name, what: "it was removed"}
	case err == nil && uint64(st.Ino) != q.identity.file:
		return &damageError{file: q.name, what: "it was replaced by another file"}
	}
	// Any other error says that the directory was closed to us, which opens no other file.
	q.lastIntact = now
	return nil
}

func (q *queueFile) head() header { return q.pages[:headerSize] }

// grow makes room for a longer file.
func (q *queueFile) grow(size int) {
	for len(q.pages) < size {
		q.pages = append(q.pages, make([]byte, len(q.pages))...)
	}
}

// load reads the records, as left by the last critical section of any process.
func (q *queueFile) load() error {
	if err := q.readAt(q.pages[:pageSize], 0); err != nil {
		return err
	}
	if wrong := q.head().check(q.n, q.identity); wrong != "" {
		return &damageError{file: q.name, what: wrong}
	}
	// A copy that was written into the file itself has its identity. It shows by its seq, as long
	// as no new process, which cannot know, has counted on beyond what we have seen: session.review
	// is for that. Any entry that was ever granted and is not in such a copy is younger.
	if q.head().seq() < q.last.Load() {
		return &damageError{file: q.name, what: "an older copy was written into it", restored: true}
	}
	q.last.Store(q.head().seq())
	high := q.head().high()
	end := (high + 1) * recordSize
	q.grow(end)
	if end > pageSize {
		if err := q.readAt(q.pages[pageSize:end], pageSize); err != nil {
			return err
		}
	}
	q.records = slices.Grow(q.records[:0], high)[:high]
	for i := range q.records {
		r := &q.records[i]
		if r.slot = i + 1; !r.decode(q.pages[r.slot*recordSize:]) {
			return &damageError{file: q.name, what: fmt.Sprintf("the record in slot %d is broken", r.slot)}
		}
	}
	return nil
}

// probe is called before each access to a queue file, if it is set: tests count with it,
// and die at a chosen step. Atomic, since goroutines of a session read it that a test has
// not called (wake).
var probe atomic.Pointer[func(write bool)]

// readAt reads; beyond the end of the file nothing was ever written, and all is zero.
func (q *queueFile) readAt(b []byte, at int64) error {
	if f := probe.Load(); f != nil {
		(*f)(false)
	}
	n, err := pread(q.fd, b, at)
	if err != nil {
		return fmt.Errorf("read %s: %w", q.name, err)
	}
	clear(b[n:])
	return nil
}

// write writes within one page. An error says that nothing was written: a page in the
// kernel's cache is written to the end or not begun.
func (q *queueFile) write(b []byte, at int64) error {
	if f := probe.Load(); f != nil {
		(*f)(true)
	}
	for {
		n, err := unix.Pwrite(q.fd, b, at)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return fmt.Errorf("write %s: %w", q.name, err)
		case n != len(b):
			return fmt.Errorf("write %s: %w", q.name, io.ErrShortWrite)
		default:
			return nil
		}
	}
}

// pread reads; on a local file it falls short at the end of the file only.
func pread(fd int, b []byte, at int64) (int, error) {
	for {
		n, err := unix.Pread(fd, b, at)
		if err != unix.EINTR {
			return max(n, 0), err
		}
	}
}

// openFile opens a regular file of ours below a directory of ours. Everything else with
// its name is a trap or a mistake.
func (a access) openFile(dir int, name string, flags int) (int, error) {
	fd, err := openat(dir, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil {
		switch {
		case uint32(st.Mode)&unix.S_IFMT != unix.S_IFREG:
			err = errors.New("it is not a regular file")
		case flags&unix.O_EXCL == 0 && !a.owns(&st):
			err = &foreignError{st.Uid}
		case flags&unix.O_EXCL != 0, flags&unix.O_CREAT != 0 && uint32(st.Mode)&0o600 != 0o600:
			err = unix.Fchmod(fd, a.fileMode()) // under every umask
		}
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// openNote opens a note, which in a store for all users may be anybody's. A hard link in a
// directory where others may write can be one to a file that they may not read and we may.
func (a access) openNote(dir int, name string) (int, error) {
	shared := a.kind != oneUser
	if a.kind == allUsers {
		a.kind = oneGroup
	}
	fd, err := a.openFile(dir, name, unix.O_RDONLY)
	if err != nil || !shared {
		return fd, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && st.Nlink != 1 {
		err = errors.New("it is a hard link")
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// openat goes on after a signal, which Go's runtime sends to its own threads.
func openat(dir int, name string, flags int, mode uint32) (int, error) {
	for {
		fd, err := unix.Openat(dir, name, flags, mode)
		if err != unix.EINTR {
			return fd, err
		}
	}
}
