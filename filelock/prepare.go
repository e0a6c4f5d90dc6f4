//go:build linux || darwin || freebsd

package filelock

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hasplock/hasp/driver"
)

// What is in a store directory, but for the notes (notes.go).
const (
	queuesDirName   = "q"      // the queue files, 00 to 3f
	sessionsDirName = "s"      // a file for each session
	formatFile      = "format" // says that this is a store, and of which format

	format       = formatBegin + "2\n"
	formatBegin  = "hasp file store, format " // stays for good, and behind it the number
	formatNumber = 2
)

// prepare brings the store into the state from which it is used: every queue file there
// and empty, no session files. The caller has the exclusive flock, so that no entry in it
// has a living owner.
//
// All queue files are made here and never later, so that one that is missing was removed,
// and is never taken for new. A file that is damaged, missing, or a copy continues above the
// highest number of all; should all be gone, the clock carries on.
func prepare(root int, path string, a opened) error {
	if err := a.checkOwn(root, path); err != nil {
		return err
	}
	dirs := []string{queuesDirName, sessionsDirName}
	if a.kind != oneUser {
		dirs = append(dirs, notesDir) // with the right mode for all, and in a store for all users by root
	}
	for _, name := range dirs {
		if err := a.makeDir(root, name); err != nil {
			return fmt.Errorf("make %s/%s: %w", path, name, err)
		}
	}
	queues, err := a.openDir(root, queuesDirName)
	if err != nil {
		return explain(path+"/"+queuesDirName, err)
	}
	defer unix.Close(queues)
	lives, err := a.openDir(root, sessionsDirName)
	if err != nil {
		return explain(path+"/"+sessionsDirName, err)
	}
	defer unix.Close(lives)

	if err := a.prepareQueues(root, queues, path); err != nil {
		return err
	}
	names, err := readDir(lives)
	if err != nil {
		return fmt.Errorf("read %s/%s: %w", path, sessionsDirName, err)
	}
	for _, name := range names {
		_ = unix.Unlinkat(lives, name, 0) // an unused file, at worst
	}
	// No other process is in a critical section. Notes, too, are unused files at worst.
	_ = a.removeOldNotes(root, func(_ int, do func()) error { do(); return nil })
	return a.writeFormat(root, path)
}

// checkOwn refuses a directory that is used for something else: a mistyped path must not
// put files into another directory.
func (a opened) checkOwn(root int, path string) error {
	found, err := a.readFormat(root)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("read %s/%s: %w", path, formatFile, err)
	}
	if found != "" {
		return checkFormat(path, found)
	}
	names, err := readDir(root)
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	for _, name := range names {
		// Our own are there if a process died while making the store.
		if name = strings.TrimSuffix(name, "+"); name != queuesDirName && name != sessionsDirName && name != notesDir && name != formatFile {
			return fmt.Errorf("%w: %s contains %q and is not a store; a store needs its own directory",
				driver.ErrInvalid, path, name)
		}
	}
	if a.kind == allUsers && !a.asked {
		return fmt.Errorf("%w: %s is for all users and not a store; root makes one there by mode=1777 in the URL", driver.ErrInvalid, path)
	}
	return nil
}

func checkFormat(path, found string) error {
	if found == format {
		return nil
	}
	rest, _ := strings.CutPrefix(found, formatBegin)
	if number, err := strconv.Atoi(strings.TrimSpace(rest)); err == nil {
		return driver.OtherFormat("the store "+path, number, formatNumber, "what is in it")
	}
	return fmt.Errorf("%w: %s has a format file that says %q, which is no version of hasp; choose another directory",
		driver.ErrInvalid, path, strings.TrimSpace(found))
}

// readFormat returns what the format file says, "" if its writer died before it did. Whose
// the file is does not matter: root may have restored the store.
func (a access) readFormat(root int) (string, error) {
	fd, err := a.openFile(root, formatFile, unix.O_RDONLY)
	if errors.As(err, new(*foreignError)) {
		fd, err = openat(root, formatFile, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	}
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	b := make([]byte, 128)
	n, err := pread(fd, b, 0)
	return string(b[:n]), err
}

// writeFormat comes last: with it, the store is complete. A file that says what it should stays,
// if its time is ours to set (see sweepSometimes); in a store of several users another's is as
// good. A new one gets its name last: one that others may not read would refuse them for ever.
func (a access) writeFormat(root int, path string) error {
	found, err := a.readFormat(root)
	if err == nil && found == format && (touch(root, formatFile) == nil || a.kind != oneUser) {
		return nil
	}
	const fresh = formatFile + "+"
	_ = unix.Unlinkat(root, fresh, 0) // of a process that died here
	fd, err := a.openFile(root, fresh, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	if err == nil {
		_, err = unix.Pwrite(fd, []byte(format), 0)
		_ = unix.Close(fd)
	}
	if err == nil {
		err = unix.Renameat(root, fresh, root, formatFile)
	}
	if err != nil {
		return fmt.Errorf("write %s/%s: %w", path, formatFile, err)
	}
	return nil
}

func (a access) prepareQueues(root, queues int, path string) error {
	var broken []int
	floor := uint64(0)
	dir, err := inodeOf(root)
	if err != nil {
		return fmt.Errorf("look at %s: %w", path, err)
	}
	page := make(header, pageSize) // for each in turn: every process that is alone in the store comes here
	for n := range queueFiles {
		seq, err := a.resetQueue(dir, queues, n, page)
		var d *damageError
		switch {
		case errors.As(err, &d), errors.Is(err, unix.ENOENT):
			broken = append(broken, n)
		case err != nil:
			return fmt.Errorf("queue file %s/%s/%02x: %w", path, queuesDirName, n, err)
		}
		floor = max(floor, seq)
	}
	for _, n := range broken {
		if err := a.makeQueue(root, queues, n, floor); err != nil {
			return fmt.Errorf("make queue file %s/%s/%02x: %w", path, queuesDirName, n, err)
		}
	}
	return nil
}

// resetQueue empties a queue file and returns its last seq, also of a copy. That is not
// written to: by a hard link it may be the very file that another store uses. h is a page to use.
func (a access) resetQueue(dir uint64, queues, n int, h header) (uint64, error) {
	fd, err := a.openFile(queues, fmt.Sprintf("%02x", n), unix.O_RDWR)
	if err != nil {
		return 0, a.damagedIfWrongType(queues, n, err)
	}
	defer unix.Close(fd)
	clear(h) // a file may be shorter
	if _, err := pread(fd, h, 0); err != nil {
		return 0, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, err
	}
	at := fileIdentity{dir: dir, file: uint64(st.Ino)}
	seq := uint64(0)
	switch wrong := h.check(n, at); wrong {
	case "":
		seq = h.seq()
	case isCopy:
		return h.seq(), &damageError{what: wrong}
	default:
		return 0, &damageError{what: wrong}
	}
	if h.high() > 0 { // after an orderly end nothing is in it
		h.init(n, at, seq)
		err = writeHeader(fd, h)
	}
	if err == nil && st.Size > pageSize {
		err = unix.Ftruncate(fd, pageSize) // returns the space of a long queue
	}
	return seq, err
}

// damagedIfWrongType makes damage of an error of opening a queue file, if something is there that
// cannot be one: a link, a directory, a file of another user, or one whose maker died before it had
// its mode.
func (a access) damagedIfWrongType(queues, n int, err error) error {
	var st unix.Stat_t
	if unix.Fstatat(queues, fmt.Sprintf("%02x", n), &st, unix.AT_SYMLINK_NOFOLLOW) == nil &&
		(uint32(st.Mode)&unix.S_IFMT != unix.S_IFREG || !a.owns(&st) ||
			err == unix.EACCES && uint32(st.Mode)&a.fileMode() != a.fileMode()) {
		return &damageError{what: err.Error()}
	}
	return err
}

// makeQueue makes a queue file where there is none, or something else. A directory must be
// empty to be removed.
func (a access) makeQueue(root, queues, n int, seq uint64) error {
	name := fmt.Sprintf("%02x", n)
	err := unix.Unlinkat(queues, name, 0)
	if err == unix.EISDIR || err == unix.EPERM {
		err = unix.Unlinkat(queues, name, unix.AT_REMOVEDIR)
	}
	if err != nil && err != unix.ENOENT {
		return err
	}
	fd, err := a.openFile(queues, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	at, err := fileIdentityOf(root, fd)
	if err != nil {
		return err
	}
	h := make(header, pageSize) // with the slots beside it, so that reading gets a page
	h.init(n, at, seq)
	return writeHeader(fd, h)
}

func writeHeader(fd int, h header) error {
	n, err := unix.Pwrite(fd, h, 0)
	if err == nil && n < len(h) {
		err = io.ErrShortWrite
	}
	return err
}

// readDir lists a directory. It opens it anew: all readers of a descriptor share
// its position.
func readDir(dir int) ([]string, error) {
	fd, err := openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), ".")
	defer f.Close()
	return f.Readdirnames(-1)
}
