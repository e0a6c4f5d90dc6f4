//go:build linux || darwin || freebsd

package filelock

import (
	"context"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Dead sessions leave entries and a file. A process that meets an entry removes it, and the
// first to have the store to itself removes everything (prepare). What is left is a store
// in use for months, with names that are never used again: sweep is for that. So it is with
// notes of evictions.

const (
	sweepEvery = 10 * time.Minute
	sweepBound = 250 * time.Millisecond
)

// sweepSometimes sweeps if no process has for a while, going by the time of the format file.
// It is done in passing by some session's opening: no daemon, no goroutine.
func (s *store) sweepSometimes(ctx context.Context) {
	var st unix.Stat_t
	if unix.Fstatat(s.root, formatFile, &st, unix.AT_SYMLINK_NOFOLLOW) != nil ||
		time.Since(time.Unix(st.Mtim.Unix())) < sweepEvery || touch(s.root, formatFile) != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, sweepBound)
	defer cancel()
	_ = s.sweep(ctx) // the next one goes on
	_ = s.access.removeOldNotes(s.root, func(file int, do func()) error {
		q := s.files[file]
		if err := q.lock(ctx); err != nil {
			return err
		}
		defer q.unlock()
		do()
		return nil
	})
}

// sweep removes the entries of all sessions that have died, and then their files: in this
// order, since without its file a session is not known to be dead.
func (s *store) sweep(ctx context.Context) error {
	ids, err := s.sessionFiles()
	if err != nil {
		return err
	}
	gone, err := s.endedSessions(ids)
	if err != nil || len(gone) == 0 {
		return err
	}
	for _, q := range s.files {
		if err := q.sweep(ctx, gone); err != nil {
			return err
		}
	}
	for id := range gone {
		_ = unix.Unlinkat(s.sessionsDir, id.String(), 0)
	}
	return nil
}

// sessionFiles lists the sessions that have a file. One that is being made is none yet.
func (s *store) sessionFiles() (ids []sessionID, err error) {
	names, err := readDir(s.sessionsDir)
	for _, name := range names {
		if id := (sessionID{}); len(name) == len(id) && !strings.HasPrefix(name, freshPrefix) {
			copy(id[:], name)
			ids = append(ids, id)
		}
	}
	return ids, err
}

func (q *queueFile) sweep(ctx context.Context, gone deadSessions) error {
	if err := q.lock(ctx); err != nil {
		return err
	}
	defer q.unlock()
	return q.removeDead(gone)
}
