//go:build linux || darwin || freebsd

package filelock

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/doctor"
	"github.com/hasplock/hasp/internal/fstype"
)

// Warnings has none: what may be wrong takes more than a request or two.
func (*backend) Warnings(context.Context) ([]driver.Finding, error) { return nil, nil }

// Diagnose examines the directory, its file system and what is in it.
func (b *backend) Diagnose(ctx context.Context) ([]driver.Finding, error) {
	s, err := b.use(ctx)
	if err != nil {
		return nil, err
	}
	defer s.leave()
	d := &diagnosis{store: s}
	d.fileSystem()
	d.directory()
	d.limits()
	d.sessions()
	return d.Found, d.queues(ctx)
}

type diagnosis struct {
	doctor.Report
	store *store
}

// The least that should be free: a queue of a thousand, and the files of its sessions.
const (
	leastSpace  = 16 << 20
	leastInodes = 2000
)

func (d *diagnosis) fileSystem() {
	fs, err := fstype.Of(d.store.root)
	if err != nil {
		d.Add(driver.Warn, "file system", fmt.Sprintf("cannot be examined: %v", err), "")
		return
	}
	d.When(fs.Kind != fstype.Local, driver.Warn, "file system", fs.Name+" is not known to be local", "make sure that no other machine has it mounted; a local disk or tmpfs is sure")
	d.Else("file system", fs.Name+", local")
	d.When(fs.Space < leastSpace, driver.Warn, "space", fmt.Sprintf("%d KB free", fs.Space>>10), "free some: a full disk refuses new entries")
	d.When(fs.Inodes >= 0 && fs.Inodes < leastInodes, driver.Warn, "inodes", fmt.Sprintf("%d inodes free", fs.Inodes), "remove files: without inodes no session can open")
}

// directory looks at what attaching does not refuse.
func (d *diagnosis) directory() {
	var st unix.Stat_t
	if err := unix.Fstat(d.store.root, &st); err != nil {
		d.Add(driver.Warn, "directory", fmt.Sprintf("cannot be examined: %v", err), "")
		return
	}
	kind, text := d.store.access.kind, fmt.Sprintf("%s, mode %#o, ", d.store.path, st.Mode&0o7777)
	d.When(kind == oneGroup, driver.Info, "directory", fmt.Sprintf("%sshared by the members of gid %d", text, st.Gid), "")
	d.When(kind == allUsers, driver.Info, "directory", text+"shared by all users, each of whom can break it", "")
	d.When(st.Mode&0o077 != 0, driver.Warn, "directory", fmt.Sprintf("others may look into it (mode %#o)", st.Mode&0o777), "chmod 0700 "+d.store.path)
	d.Else("directory", fmt.Sprintf("%suid %d", text, st.Uid))
	// A user that may rename in a parent can put another directory in the place of the store.
	for dir := filepath.Dir(d.store.path); ; dir = filepath.Dir(dir) {
		if unix.Stat(dir, &st) == nil && st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0 {
			d.Add(driver.Warn, "directory", "others may rename the store: they can write in "+dir, "chmod go-w "+dir)
		}
		if dir == filepath.Dir(dir) {
			return
		}
	}
}

// leastFiles is how many files a process needs to use every queue file and watch a few sessions.
const leastFiles = 2 * queueFiles

func (d *diagnosis) limits() {
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &r) == nil && uint64(r.Cur) < leastFiles {
		d.Add(driver.Warn, "limits", fmt.Sprintf("only %d open files are allowed", r.Cur), "raise ulimit -n")
	}
}

func (d *diagnosis) sessions() {
	ids, err := d.store.sessionFiles()
	if err != nil {
		d.Add(driver.Warn, "sessions", fmt.Sprintf("cannot be listed: %v", err), "")
		return
	}
	gone, err := d.store.endedSessions(ids)
	if err != nil {
		d.Add(driver.Warn, "sessions", fmt.Sprintf("some cannot be examined: %v", err), "")
	}
	d.Add(driver.Info, "sessions", fmt.Sprintf("%d live, %d dead to be swept", len(ids)-len(gone), len(gone)), "")
}

// queues reads every header.
func (d *diagnosis) queues(ctx context.Context) error {
	last, full := uint64(0), 0
	for _, q := range d.store.files {
		err := q.lock(ctx)
		if err == nil {
			q.lastIntact = time.Time{}
			err = q.intact()
			last, full = max(last, q.head().seq()), max(full, q.head().high())
			q.unlock()
		}
		if isDamage(err) {
			d.Add(driver.Bad, "queue file", err.Error(), "end all processes that use the store; the next to open it repairs it")
		} else if err != nil {
			return err
		}
	}
	ahead := time.Until(time.UnixMicro(int64(last)))
	d.When(ahead > time.Second, driver.Warn, "clock", fmt.Sprintf("the clock is %s behind the last token", ahead.Round(time.Second)),
		"set the clock; until then tokens are counted on, and a lost disk could repeat them")
	d.When(last > 0, driver.Info, "clock", fmt.Sprintf("the last token is %s old", (-ahead).Round(time.Second)), "")
	d.When(full > maxSlots/2, driver.Warn, "slots", fmt.Sprintf("%d of %d slots of a queue file in use", full, maxSlots), "look for a name with very many waiters")
	return nil
}
