package group

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// working tells a group in which a process runs from a group of zombies. A zombie whose parent,
// outside of the group, does not wait for it cannot be killed and does nothing: it must not hold
// the lock for ever. kill counts zombies, so this reads /proc. It watches one member while that
// runs, since reading all processes of a machine takes milliseconds.
//
// A member may fork and end during the look, and its child may have a number that the look has
// already passed. The member's own zombie is then new, or it was reaped and is missing: so the
// group counts as dead only after two looks in a row that find the same zombies and no other
// process. Where /proc does not show all processes (no /proc, that of another PID namespace,
// hidepid) the answer of kill counts.
func (g *Group) working() bool {
	if g.member != 0 {
		if p, err := readProcess(g.member); err == nil && p.group == g.id && !p.zombie {
			return true
		}
	}
	g.member = 0
	all, err := processesOf(g.id)
	if err != nil {
		return true
	}
	var zombies []int
	for _, p := range all {
		if !p.zombie {
			g.member, g.zombies = p.id, nil
			return true
		}
		zombies = append(zombies, p.id)
	}
	same := len(zombies) > 0 && slices.Equal(zombies, g.zombies)
	g.zombies = zombies
	return !same
}

// OutOfReach are the running members that this process may not signal: they run as another user. A
// signal to the whole group is reported as sent if one member has got it.
func (g *Group) OutOfReach() []Member {
	return slices.DeleteFunc(g.running(), func(m Member) bool { return syscall.Kill(m.PID, 0) != syscall.EPERM })
}

// Left is a running process of the group, if one is visible.
func (g *Group) Left() (Member, bool) {
	for _, m := range g.running() {
		return m, true
	}
	return Member{}, false
}

// running are the processes of the group that are visible, without zombies; of an empty one, the
// detached processes.
func (g *Group) running() (all []Member) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var found []process
	if g.empty {
		found = g.detachedLocked()
	} else {
		found, _ = processesOf(g.id)
	}
	for _, p := range found {
		if !p.zombie {
			all = append(all, Member{p.id, realUser(p.id), p.command})
		}
	}
	return all
}

// process is a process as /proc shows it.
type process struct {
	id, group int
	zombie    bool
	command   string
}

// processesOf are all processes of a group, in the order of their numbers. After an error there may
// be more.
func processesOf(group int) ([]process, error) {
	if self, err := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
		return nil, errors.New("no /proc of this PID namespace")
	}
	if _, err := readProcess(1); err != nil {
		return nil, err // hidepid
	}
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var found []process
	for _, name := range names {
		id, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		p, err := readProcess(id)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ESRCH):
			continue // it has ended since
		case err != nil:
			return nil, err
		case p.group == group:
			found = append(found, p)
		}
	}
	slices.SortFunc(found, func(a, b process) int { return a.id - b.id })
	return found, nil
}

func readProcess(id int) (process, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", id))
	if err != nil {
		return process{}, err
	}
	// pid (name) state ppid pgrp ... The name may have spaces and parentheses in it.
	end := max(bytes.LastIndexByte(text, ')'), 0)
	_, name, _ := strings.Cut(string(text[:end]), "(")
	fields := strings.Fields(string(text[end+1:]))
	if len(fields) < 18 {
		return process{}, errors.New("/proc is not as expected")
	}
	group, err := strconv.Atoi(fields[2])
	// The state is the first thread's, which may have ended before the others.
	dead := fields[0] == "X" || fields[0] == "Z" && fields[17] == "1"
	return process{id, group, dead, name}, err
}

// realUser is the user that the process belongs to, which decides who may signal it. -1 means
// unknown.
func realUser(id int) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", id))
	_, rest, _ := strings.Cut(string(text), "\nUid:")
	uid, err := strconv.Atoi(strings.Fields(rest + " -")[0])
	if err != nil {
		return -1
	}
	return uid
}
