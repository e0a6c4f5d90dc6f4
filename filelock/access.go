//go:build linux || darwin || freebsd

package filelock

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/hasplock/hasp/driver"
)

// access says who shares a store. It is read from the store's directory, never from a file in it,
// so that all processes agree: the directory's owner alone can change it.
//
//	oneUser   0700   one user; root may look
//	oneGroup 02770   the members of the directory's group, who trust each other. setgid gives
//	                 their group to all that is made in it
//	allUsers 01777   every user, in a directory of root. q/ and its files are root's, so that
//	                 no user can put others in their place; s/ and e/ are sticky
type access struct {
	kind accessKind
	uid  uint32 // the directory's owner
	look bool   // root, in the private store of another user: nothing is made or written
}

type accessKind int

const (
	oneUser accessKind = iota
	oneGroup
	allUsers
)

func accessOf(st *unix.Stat_t) (access, error) {
	a, euid := access{uid: st.Uid}, uint32(os.Geteuid())
	mode := uint32(st.Mode) & 0o7777
	switch {
	case mode&0o002 != 0 && mode&unix.S_ISVTX != 0:
		a.kind = allUsers
		if st.Uid != 0 {
			return a, fmt.Errorf("%w: it belongs to uid %d, and a store for all users must belong to root", driver.ErrInvalid, st.Uid)
		}
	case mode&0o022 == 0o020 && mode&unix.S_ISGID != 0:
		a.kind = oneGroup
	case st.Uid != euid && euid == 0:
		a.look = true
		fallthrough
	case st.Uid == euid:
		if mode&0o022 != 0 {
			return a, fmt.Errorf("%w: others may write in it (mode %#o); chmod it to 0700, or 2770 to share it with its group",
				driver.ErrInvalid, mode)
		}
	default:
		return a, fmt.Errorf("%w: it belongs to uid %d and this process runs as uid %d; a store with mode %#o has one owner",
			driver.ErrInvalid, st.Uid, euid, mode)
	}
	return a, nil
}

// wanted holds the wishes in Options.
type wanted struct {
	mode uint32 // 0 accepts the mode found
	gid  int    // -1 is the process's own
}

func (o *Options) wanted() (wanted, error) {
	w := wanted{mode: o.Mode, gid: -1}
	switch {
	case o.Mode != 0 && o.Mode != 0o700 && o.Mode != 0o770 && o.Mode != 0o1777:
		return w, fmt.Errorf("%w: a store's mode is 0700 (one user), 0770 (a group) or 1777 (all users), not %#o", driver.ErrInvalid, o.Mode)
	case o.Group != "" && o.Mode != 0o770:
		return w, fmt.Errorf("%w: a group needs mode 0770", driver.ErrInvalid)
	case o.Mode == 0o770 && o.Group == "":
		w.gid = os.Getegid()
	case o.Mode == 0o770:
		name := o.Group
		if g, err := user.LookupGroup(name); err == nil {
			name = g.Gid
		}
		gid, err := strconv.ParseUint(name, 10, 31)
		if err != nil {
			return w, fmt.Errorf("%w: there is no group %q on this machine", driver.ErrInvalid, o.Group)
		}
		w.gid = int(gid)
	}
	return w, nil
}

// dirMode is the mode that the directory gets and must have.
func (w wanted) dirMode() uint32 {
	if w.mode == 0o770 {
		return 0o2770
	}
	return w.mode
}

// accept compares a directory with what was asked for. What does not fit is refused: to change it
// would take or give permissions that somebody has chosen.
func (w wanted) accept(path string, st *unix.Stat_t) error {
	have := uint32(st.Mode) & 0o7777
	same := have == w.dirMode() || w.mode == 0o1777 && have == 0o3777
	if w.mode == 0 {
		// A group's directory that neither we nor root have made may be a trap.
		if have&unix.S_ISGID != 0 && have&0o022 == 0o020 && st.Uid != 0 && int(st.Uid) != os.Geteuid() {
			return fmt.Errorf("%w: it belongs to uid %d, not to us or root; mode=0770&group=%d in the URL accepts it",
				driver.ErrInvalid, st.Uid, st.Gid)
		}
		return nil
	}
	cure := ""
	switch {
	case w.mode == 0o770 && (!same || int(st.Gid) != w.gid):
		cure = fmt.Sprintf("chgrp %d %s && chmod 2770 %s", w.gid, path, path)
	case !same:
		cure = fmt.Sprintf("chmod %04o %s", w.mode, path)
	default:
		return nil
	}
	return fmt.Errorf("%w: it has mode %#o and gid %d, which is not what the URL asks for, and hasp changes no directory that is there; "+
		"when no process uses the store, remove what is in it and %s", driver.ErrInvalid, have, st.Gid, cure)
}

// make makes the directory. One that is shared gets its name last, so that no other user meets it
// with a mode that refuses them. If we die before, an empty directory with another name is left.
func (w wanted) make(path string) error {
	if w.mode == 0 || w.mode == 0o700 {
		return makePrivate(path)
	}
	if _, err := os.Lstat(path); err == nil {
		return nil
	}
	if w.mode == 0o1777 && os.Geteuid() != 0 {
		return fmt.Errorf("%w: root must make a store for all users: hasp doctor as root, with this URL", driver.ErrInvalid)
	}
	fresh, err := os.MkdirTemp(filepath.Dir(path), ".hasp-new-")
	if err != nil {
		return fmt.Errorf("%w (the directory above must be there, and other users must be able to pass it)", err)
	}
	if err = os.Chown(fresh, -1, w.gid); err != nil {
		err = fmt.Errorf("%w (root or a member of group %d must make the store)", err, w.gid)
	} else if err = unix.Chmod(fresh, w.dirMode()); err == nil { // after chown, which takes setgid away
		if err = renameNew(fresh, path); err == unix.EEXIST || err == unix.ENOTEMPTY {
			err = os.Remove(fresh) // another process was first, and its directory is looked at
			return err
		}
	}
	if err != nil {
		_ = os.Remove(fresh)
	}
	return err
}

// makePrivate makes a directory for its owner, and those above it that are missing. The mode is set
// anew, here and wherever else we make something: a umask that takes a permission from the owner
// (0277, 0777) would leave things of no use, also later with another umask.
func makePrivate(path string) error {
	err := os.Mkdir(path, 0o700)
	if errors.Is(err, os.ErrNotExist) {
		if err = makePrivate(filepath.Dir(path)); err != nil {
			return err
		}
		err = os.Mkdir(path, 0o700)
	}
	switch {
	case err == nil:
		return os.Chmod(path, 0o700)
	case errors.Is(err, os.ErrExist):
		return nil // by another process, perhaps; what it is, the caller looks at
	}
	return err
}

// owns says that a file is one that this store's processes have made, as far as its owner tells.
func (a access) owns(st *unix.Stat_t) bool { return a.kind == oneGroup || st.Uid == a.uid }

// fileMode is that of queue files, the format file and notes; it holds under every umask.
func (a access) fileMode() uint32 {
	return [...]uint32{oneUser: 0o600, oneGroup: 0o660, allUsers: 0o666}[a.kind]
}

// sessionMode gives others what proves life, and no more. Where that is a pipe, they may not read:
// its open read end is the proof.
func (a access) sessionMode() uint32 {
	return 0o600 | [...]uint32{oneUser: 0, oneGroup: sessionOthersMay << 3, allUsers: sessionOthersMay<<3 | sessionOthersMay}[a.kind]
}

func (a access) subdirMode(name string) uint32 {
	if a.kind == allUsers && name == queuesDirName {
		return 0o755
	}
	return [...]uint32{oneUser: 0o700, oneGroup: 0o2770, allUsers: 0o1777}[a.kind]
}

// makeDir makes a directory of the store. Like the store's own, a shared one gets its name last.
func (a access) makeDir(root int, name string) error {
	if a.kind == oneUser {
		if err := unix.Mkdirat(root, name, 0o700); err != nil {
			return ignore(err, unix.EEXIST)
		}
		return unix.Fchmodat(root, name, 0o700, 0)
	}
	var st unix.Stat_t
	if unix.Fstatat(root, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
		return nil
	}
	if a.kind == allUsers && os.Geteuid() != 0 {
		return fmt.Errorf("%w: root must open a store for all users first, and after damage: hasp doctor as root", driver.ErrInvalid)
	}
	fresh := name + "+"
	_ = unix.Unlinkat(root, fresh, unix.AT_REMOVEDIR) // of a process that died here
	if err := unix.Mkdirat(root, fresh, 0o700); err != nil {
		return err
	}
	if err := unix.Fchmodat(root, fresh, a.subdirMode(name), 0); err != nil {
		return err
	}
	return unix.Renameat(root, fresh, root, name)
}

func ignore(err, known error) error {
	if err == known {
		return nil
	}
	return err
}

// openDir opens a directory of the store, which must be one that no stranger may change.
func (a access) openDir(dir int, name string) (int, error) {
	fd, st, err := openDirStat(dir, name)
	if err != nil {
		return -1, err
	}
	mode := uint32(st.Mode) & 0o7777
	switch {
	case !a.owns(&st):
		err = fmt.Errorf("%w: it belongs to uid %d, and the store to uid %d", driver.ErrInvalid, st.Uid, a.uid)
	case a.kind == oneUser && mode&0o022 != 0, a.kind == oneGroup && mode&0o002 != 0,
		a.kind == allUsers && mode&0o022 != 0 && (mode&unix.S_ISVTX == 0 || name == queuesDirName):
		err = fmt.Errorf("%w: others may write in it (mode %#o); chmod it to %#o", driver.ErrInvalid, mode, a.subdirMode(name))
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func openDirStat(dir int, name string) (fd int, st unix.Stat_t, err error) {
	fd, err = openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == nil {
		if err = unix.Fstat(fd, &st); err != nil {
			_ = unix.Close(fd)
		}
	}
	return fd, st, err
}

// denied adds who may use a store to the error of one that may not.
func denied(path string) string {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return " (no permission to a directory above it)"
	}
	mode := uint32(st.Mode) & 0o7777
	if mode&0o020 == 0 {
		return fmt.Sprintf(" (mode %#o, of uid %d: the store's owner needs read, write and search permission; "+
			"a store for several users is made with ?mode=0770&group=GROUP or ?mode=1777)", mode, st.Uid)
	}
	name := strconv.Itoa(int(st.Gid))
	if g, err := user.LookupGroupId(name); err == nil {
		name = g.Name
	}
	return fmt.Sprintf(" (mode %#o, of uid %d and group %s, and this process runs as uid %d outside that group; "+
		"let root add the user to it, or use a store of your own)", mode, st.Uid, name, os.Geteuid())
}
