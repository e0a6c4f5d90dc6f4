//go:build linux || darwin || freebsd

package filelock

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/fstype"
)

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
	if err := d.queues(ctx); err != nil {
		return d.found, err
	}
	return d.found, nil
}

type diagnosis struct {
	store *store
	found []driver.Finding
}

func (d *diagnosis) add(level driver.Level, subject, cure, text string, args ...any) {
	d.found = append(d.found, driver.Finding{Level: level, Subject: subject, Text: fmt.Sprintf(text, args...), Cure: cure})
}

// The least that should be free: a queue of a thousand, and the files of its sessions.
const (
	leastSpace  = 16 << 20
	leastInodes = 2000
)

func (d *diagnosis) fileSystem() {
	fs, err := fstype.Of(d.store.root)
	switch {
	case err != nil:
		d.add(driver.Warn, "file system", "", "cannot be examined: %v", err)
		return
	case fs.Kind != fstype.Local:
		d.add(driver.Warn, "file system", "make sure that no other machine has it mounted; a local disk or tmpfs is sure",
			"%s is not known to be local", fs.Name)
	default:
		d.add(driver.Info, "file system", "", "%s, local", fs.Name)
	}
	if fs.Space < leastSpace {
		d.add(driver.Warn, "space", "free some: a full disk refuses new entries", "%d KB free", fs.Space>>10)
	}
	if fs.Inodes >= 0 && fs.Inodes < leastInodes {
		d.add(driver.Warn, "space", "remove files: without inodes no session can open", "%d inodes free", fs.Inodes)
	}
}

// directory looks at what attaching does not refuse.
func (d *diagnosis) directory() {
	var st unix.Stat_t
	if err := unix.Fstat(d.store.root, &st); err != nil {
		d.add(driver.Warn, "directory", "", "cannot be examined: %v", err)
		return
	}
	switch {
	case d.store.access.kind == oneGroup:
		d.add(driver.Info, "directory", "", "%s, mode %#o, shared by the members of gid %d", d.store.path, st.Mode&0o7777, st.Gid)
	case d.store.access.kind == allUsers:
		d.add(driver.Info, "directory", "", "%s, mode %#o, shared by all users, each of whom can break it", d.store.path, st.Mode&0o7777)
	case st.Mode&0o077 != 0:
		d.add(driver.Warn, "directory", "chmod 0700 "+d.store.path, "others may look into it (mode %#o)", st.Mode&0o777)
	default:
		d.add(driver.Info, "directory", "", "%s, mode %#o, uid %d", d.store.path, st.Mode&0o777, st.Uid)
	}
	// A user that may rename in a parent can put another directory in the place of the store.
	for dir := filepath.Dir(d.store.path); ; dir = filepath.Dir(dir) {
		if unix.Stat(dir, &st) == nil && st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0 {
			d.add(driver.Warn, "directory", "chmod go-w "+dir, "others may rename the store: they can write in %s", dir)
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
		d.add(driver.Warn, "limits", "raise ulimit -n", "only %d open files are allowed", r.Cur)
	}
}

func (d *diagnosis) sessions() {
	ids, err := d.store.sessionFiles()
	if err != nil {
		d.add(driver.Warn, "sessions", "", "cannot be listed: %v", err)
		return
	}
	gone, err := d.store.endedSessions(ids)
	if err != nil {
		d.add(driver.Warn, "sessions", "", "some cannot be examined: %v", err)
	}
	d.add(driver.Info, "sessions", "", "%d live, %d dead to be swept", len(ids)-len(gone), len(gone))
}

// queues reads every header.
func (d *diagnosis) queues(ctx context.Context) error {
	last, full := uint64(0), uint32(0)
	for _, q := range d.store.files {
		err := q.lock(ctx)
		if isDamage(err) {
			d.add(driver.Bad, "queue file", "end all processes that use the store; the next to open it repairs it", "%v", err)
			continue
		}
		if err != nil {
			return err
		}
		q.lastIntact = time.Time{}
		err = q.intact()
		last, full = max(last, q.head.seq()), max(full, q.head.high())
		q.unlock()
		if err != nil {
			d.add(driver.Bad, "queue file", "end all processes that use the store; the next to open it repairs it", "%v", err)
		}
	}
	ahead := time.Until(time.UnixMicro(int64(last)))
	switch {
	case ahead > time.Second:
		d.add(driver.Warn, "clock", "set the clock; until then tokens are counted on, and a lost disk could repeat them",
			"the clock is %s behind the last token", ahead.Round(time.Second))
	case last > 0:
		d.add(driver.Info, "clock", "", "the last token is %s old", (-ahead).Round(time.Second))
	}
	if full > maxSlots/2 {
		d.add(driver.Warn, "queue file", "look for a name with very many waiters", "%d of %d slots in use", full, maxSlots)
	}
	return nil
}
