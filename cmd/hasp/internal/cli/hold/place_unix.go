//go:build unix

package hold

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/bound"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/exit"
	"golang.org/x/sys/unix"
)

// The holders of hold --background are found without a variable: by a directory whose name has the
// number and the start of the process that they are for, with a socket for each. Another process of
// the same user, and a later one with the same number, has another directory. It is trusted only if
// it belongs to this user, and no other can enter it: anybody can make a name in /tmp.
//
// Rejected: one directory for all, with the processes in a file (who writes it last?); a search in
// the store for the entries of a process (one that does not answer must not hide a lock).
const places = "hasp-hold-"

// Places finds the sockets for a process; for 0, for the nearest process above that has some.
func Places(pid int) (of int, sockets []string) {
	if pid != 0 {
		b, err := bound.To(pid)
		if err != nil {
			return pid, nil
		}
		return pid, socketsOf(b)
	}
	for _, b := range bound.Above() {
		if sockets = socketsOf(b); len(sockets) > 0 {
			return b.PID, sockets
		}
	}
	return 0, nil
}

// Above finds the sockets for all processes above.
func Above() (sockets []string) {
	for _, b := range bound.Above() {
		sockets = append(sockets, socketsOf(b)...)
	}
	return sockets
}

func socketsOf(b *bound.Process) []string {
	for _, parent := range parents() { // one may be there twice
		if dir := filepath.Join(parent, places+b.ID()); trusted(dir) {
			if found, _ := filepath.Glob(dir + "/*"); len(found) > 0 { // there is nothing to escape in our names
				return found
			}
		}
	}
	return nil
}

func trusted(dir string) bool {
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() || info.Mode().Perm()&0o077 != 0 {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}

// directory is one of a process, locked: in it, one hasp at a time looks for what there is and adds
// to it, and an empty one is removed.
type directory struct {
	path string
	*os.File
}

// enter locks a directory. An error wraps fs.ErrNotExist if it was removed in the meantime.
func enter(path string, how int) (*directory, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|how)
	}
	if err == nil {
		now, gone := os.Stat(path)
		ours, serr := f.Stat()
		if err = errors.Join(gone, serr); err == nil && !os.SameFile(now, ours) {
			err = fs.ErrNotExist
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &directory{path, f}, nil
}

// leave unlocks it. It fails to remove a directory that is still used.
func (d *directory) leave() {
	_ = syscall.Rmdir(d.path)
	d.Close()
}

// prepare makes the directory of a process, and enters it.
func prepare(b *bound.Process) (d *directory, err error) {
	for _, parent := range parents() {
		path := filepath.Join(parent, places+b.ID())
		for err = fs.ErrNotExist; errors.Is(err, fs.ErrNotExist); { // its last holder has just removed it
			if err = os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
				break // also where there is no such parent
			}
			if !trusted(path) {
				err = &fs.PathError{Op: "use", Path: path, Err: fs.ErrPermission}
				break
			}
			d, err = enter(path, 0)
		}
		if err == nil {
			sweep(parent)
			return d, nil
		}
	}
	return nil, err
}

// sweep removes what holders have left behind that were killed, and their processes after them.
func sweep(parent string) {
	all, _ := filepath.Glob(filepath.Join(parent, places+"*.*"))
	for _, dir := range all {
		if b := bound.ByID(filepath.Base(dir)[len(places):]); b != nil && !b.Alive() && trusted(dir) {
			_ = os.RemoveAll(dir) // its holder, if it still releases, needs no socket any more
		}
	}
}

// Background finds the holder that process pid has for the wanted locks, or starts one, with the
// arguments of this hasp, and has tell print its state. env adds to its environment, by the other
// locks of that process. Whichever of two calls at once comes second finds the holder of the first.
//
// A lock that the process has lost is told once: what it did under it may have met the work of
// others, so it must not just get the lock anew.
func Background(ctx context.Context, pid int, want State, args []string, env func(held []State) []string, tell func(State) error) error {
	b, err := bound.To(pid)
	if err != nil {
		return exit.Usage("%v", err)
	}
	if b.Adopts() { // its lock would have no end, and be for every process below it
		return exit.Usage("process %d takes over each process whose parent has ended: the one that has started this shell is gone, and needs no lock", pid)
	}
	d, err := prepare(b)
	if err != nil {
		return exit.Misconfigured("no place for the socket of the background holder: %w", err)
	}
	defer d.leave()
	sockets, _ := filepath.Glob(d.path + "/*")
	var held []State
	for _, socket := range sockets {
		s, err := Find(socket)
		var silent *exit.Failure
		switch {
		case errors.Is(err, unix.ECONNREFUSED):
			_ = os.Remove(socket)
			return &exit.Failure{Code: exit.CodeLost, Outcome: exit.OutcomeLost, Err: errors.New("a background holder of this process was killed, and its lock is lost: look at what was done under it, and ask again")}
		case errors.Is(err, fs.ErrNotExist): // it has just ended
		case errors.Is(err, driver.ErrInvalid), errors.As(err, &silent):
			return exit.Of(err)
		case err != nil:
			return &exit.Failure{Code: exit.CodeInternal, Outcome: exit.OutcomeInternal, Err: err}
		case s.SameAs(want) && (s.State == "lost" || s.State == "ended"):
			if s, err = Ask(socket, AskRelease, 0); err == nil && s.State == "lost" {
				return tell(s)
			}
		case s.SameAs(want):
			return tell(s)
		case s.Meets(want):
			return exit.Misconfigured("process %d has asked for %q in another way already; release it first: hasp release --mine --pid %[1]d", pid, s.Name)
		case s.State == "held":
			held = append(held, s)
		}
	}
	return launch(ctx, b, d.path, env(held), args, tell)
}
