package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// The runner is tried on clients of this file, which are this test's binary started anew,
// with a lock that needs no server.

const asFake = "fake client"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == asFake {
		if err := beFake(os.Args[2], os.Args[3], os.Args[4]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// startFake is match.start for fakes: sides say of which kind ours and theirs are.
func startFake(t *testing.T, dir string, sides map[bool]string) func(string, bool, time.Duration) (*process, error) {
	return func(label string, ours bool, ttl time.Duration) (*process, error) {
		p, err := start(label, []string{os.Args[0], asFake, sides[ours], dir, fmt.Sprint(ttl.Milliseconds())}, nil)
		if err == nil {
			t.Cleanup(p.kill)
		}
		return p, err
	}
}

// beFake is such a client. Every kind but "good" has a different fault.
func beFake(kind, dir, ms string) error {
	n, err := strconv.Atoi(ms)
	if err != nil {
		return err
	}
	l := &fileLock{kind: kind, dir: dir, ttl: time.Duration(n) * time.Millisecond, me: strconv.Itoa(os.Getpid())}
	switch kind {
	case "blind":
		return serve(blind{}, kind, os.Stdin, os.Stdout)
	case "stillborn":
		return fmt.Errorf("no such database")
	case "foreigner":
		fmt.Println("usage: foreigner [-h]")
	}
	return serve(l, kind, os.Stdin, os.Stdout)
}

// fileLock is a lock with a lease that is not renewed: a file names its holder and the end of the
// lease.
type fileLock struct {
	kind, dir, me, name string
	ttl                 time.Duration
	until               time.Time
}

// change lets decide see the holder of the lock, "" for none, and write the new holder.
func (l *fileLock) change(decide func(holder string) (next string)) error {
	f, err := os.OpenFile(filepath.Join(l.dir, l.name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close() // and with it goes the flock
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	var holder string
	var until int64
	_, _ = fmt.Fscan(f, &holder, &until) // a new file is empty
	if time.Now().UnixMicro() > until {
		holder = ""
	}
	next := decide(holder)
	if next == holder {
		return nil
	}
	if err := f.Truncate(0); err != nil || next == "" {
		return err
	}
	_, err = f.WriteAt(fmt.Appendf(nil, "%s %d\n", next, l.until.UnixMicro()), 0)
	return err
}

func (l *fileLock) lock(name string) error {
	switch l.kind {
	case "mortal":
		fmt.Fprintln(os.Stderr, "out of memory")
		os.Exit(3)
	case "babbler":
		return fmt.Errorf("two\nlines")
	}
	for {
		if ok, err := l.try(name); ok || err != nil {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

func (l *fileLock) try(name string) (ok bool, err error) {
	l.name, l.until = name, time.Now().Add(l.ttl)
	if l.kind == "hasty" {
		l.until = time.Now().Add(l.ttl / 50)
	}
	err = l.change(func(holder string) string {
		if ok = holder == ""; ok {
			return l.me
		}
		return holder
	})
	return ok, err
}

func (l *fileLock) unlock() error {
	mine := false
	err := l.change(func(holder string) string {
		if mine = holder == l.me; mine || l.kind == "blunt" {
			return ""
		}
		return holder
	})
	if err == nil && !mine {
		return errLost
	}
	return err
}

func (l *fileLock) check() (bool, error) {
	if l.kind == "believer" {
		return true, nil
	}
	return time.Now().Before(l.until), nil
}
