//go:build linux || darwin || freebsd

package filelock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

// The entries and files of the dead are swept in passing by a later session, also of names
// are never used again, and those of the living stay.
func TestSweep(t *testing.T) {
	dir := storeDir(t)
	living := openTestSession(t, dir)
	mine := living.Ticket(mutexRequest("mine", "lives")).(*ticket)
	if _, err := mine.Enqueue(patient(t)); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		p := start(t, job{Do: "hold", Dir: dir, Name: "forgotten"})
		p.must("holds")
		p.kill()
	}
	q := living.store.file(newKey("forgotten"))
	inQueue := func() bool {
		t.Helper()
		if err := q.lock(patient(t)); err != nil {
			t.Fatal(err)
		}
		defer q.unlock()
		return len(q.queue(newKey("forgotten"))) > 0
	}
	openTestSession(t, dir)
	if !inQueue() || countFiles(t, dir+"/"+sessionsDirName) < 5 {
		t.Error("swept although another had swept a moment ago")
	}
	// A sweep has a quarter of a second; on a busy machine the next one goes on.
	sessions, files := 2, 0
	for range 20 {
		age(t, filepath.Join(dir, formatFile), sweepEvery+time.Minute)
		openTestSession(t, dir)
		sessions++
		if files = countFiles(t, dir+"/"+sessionsDirName); files == sessions {
			break
		}
	}
	if inQueue() {
		t.Error("an entry of a dead session is left after a sweep")
	}
	if files != sessions {
		t.Errorf("%d session files of %d sessions", files, sessions)
	}
	leave(t, mine)
}

// The first process that is alone in the store makes it as after an orderly end, in spite of any
// remains, and its numbers continue; a process that is not alone leaves all as it is.
func TestPrepare(t *testing.T) {
	dir := storeDir(t)
	p := start(t, job{Do: "hold", Dir: dir, Name: "name"})
	p.must("holds")
	b := openBackend(t, dir)
	list, err := b.List(patient(t), "name", 0)
	if err != nil || len(list) != 1 {
		t.Fatal("opened beside another process, the entries are", list, err)
	}
	b.Close()
	p.kill()
	b = openBackend(t, dir)
	if n := countFiles(t, dir+"/"+sessionsDirName); n != 0 {
		t.Errorf("%d session files in a store that is not in use", n)
	}
	s, err := b.use(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	defer s.leave()
	for _, q := range s.files {
		if err := q.lock(patient(t)); err != nil {
			t.Fatal(err)
		}
		if q.head().high() != 0 {
			t.Errorf("%s is not empty in a store that is not in use", q.name)
		}
		q.unlock()
	}
	if token := usable(t, dir); token <= list[0].Seq {
		t.Errorf("token %d after %d", token, list[0].Seq)
	}
}

// Tokens go on where the clock was set back: counted from the last, and for a file that
// had to be made anew, from the last of all the others.
func TestTokensSurviveTheClock(t *testing.T) {
	dir := storeDir(t)
	token := usable(t, dir)
	ahead := token + uint64(time.Hour.Microseconds()) // as if the clock had been right then
	b := openBackend(t, dir)
	s, err := b.use(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range s.files {
		if err := q.lock(patient(t)); err != nil {
			t.Fatal(err)
		}
		q.head().setSeq(ahead)
		q.head().seal()
		if err := q.write(q.head(), 0); err != nil {
			t.Fatal(err)
		}
		q.unlock()
	}
	s.leave()
	if got := usable(t, dir); got != ahead+1 {
		t.Errorf("token %d after %d", got, ahead)
	}
	findings, err := b.Diagnose(patient(t))
	if err != nil || !slices.ContainsFunc(findings, func(f driver.Finding) bool { return f.Subject == "clock" && f.Level == driver.Warn }) {
		t.Errorf("the diagnosis of a clock that is behind: %v, %v", findings, err)
	}
	b.Close()
	name := filepath.Join(dir, queuesDirName, fmt.Sprintf("%02x", newKey("name").file()))
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if got := usable(t, dir); got <= ahead {
		t.Errorf("token %d after %d, in a file made anew", got, ahead)
	}
}

// A process that dies while it makes the store leaves it to the next, at any step.
func TestKilledWhilePreparing(t *testing.T) {
	for _, left := range [][]string{{queuesDirName}, {queuesDirName, sessionsDirName}, {queuesDirName, sessionsDirName, formatFile}} {
		dir := storeDir(t)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, name := range left {
			var err error
			if name == formatFile {
				err = os.WriteFile(filepath.Join(dir, name), nil, 0o600)
			} else {
				err = os.Mkdir(filepath.Join(dir, name), 0o700)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, queuesDirName, "00"), []byte(magic), 0o600); err != nil {
			t.Fatal(err)
		}
		usable(t, dir)
	}
}

// Somebody prepares and does not come to an end: opening ends with its context.
func TestOpenIsBounded(t *testing.T) {
	t.Parallel()
	dir := storeDir(t)
	usable(t, dir)
	fd, _, err := openDirStat(unix.AT_FDCWD, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer closeFD(fd)
	if err := flock(patient(t), fd, unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if _, err := New(ctx, dir, nil); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), dir) {
		t.Errorf("open: %v", err)
	}
}

func TestURL(t *testing.T) {
	t.Parallel()
	dir := storeDir(t)
	for _, url := range []string{"file://" + dir, "file://localhost" + dir + "/", "file://" + dir + "?allow_fuse=true"} {
		c, err := hasp.Open(patient(t), url)
		if err != nil {
			t.Fatal(url, err)
		}
		if got := c.Store(); got != "file://"+dir {
			t.Errorf("%s opens %s", url, got)
		}
		c.Close()
	}
	for _, url := range []string{
		"file:", "file:store", "file://store", "file://host" + dir, "file://user@localhost" + dir,
		"file://" + dir + "?unknown=1", "file://" + dir + "?allow_fuse=maybe",
	} {
		if c, err := hasp.Open(patient(t), url); !errors.Is(err, hasp.ErrInvalid) {
			t.Errorf("%s: %v, %v", url, c, err)
		}
	}
	if _, err := New(patient(t), "", nil); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("no directory: %v", err)
	}
}

// Watch tells of what comes, goes, is published and dies.
func TestWatch(t *testing.T) {
	t.Parallel()
	dir := storeDir(t)
	b := openBackend(t, dir)
	ctx, cancel := context.WithCancel(context.Background())
	told, ended := make(chan struct{}, 100), make(chan error, 1)
	go func() { ended <- b.Watch(ctx, "name", func() { told <- struct{}{} }) }()
	next := func(what string) {
		t.Helper()
		select {
		case <-told:
		case <-time.After(patience):
			t.Fatal("not told: ", what)
		}
		for len(told) > 0 {
			<-told // of before the next change
		}
	}
	next("that the watch has begun")
	s := openTestSession(t, dir)
	e := s.Ticket(mutexRequest("name", "id")).(*ticket)
	if _, err := e.Enqueue(patient(t)); err != nil {
		t.Fatal(err)
	}
	next("of an entry")
	if err := e.Publish(patient(t), []byte("value")); err != nil {
		t.Fatal(err)
	}
	next("of a value")
	leave(t, e)
	next("of a departure")
	p := start(t, job{Do: "hold", Dir: dir, Name: "name"})
	p.must("holds")
	next("of an entry of another process")
	p.kill()
	next("of a death")
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A watcher that was told of an entry that is gone by the next look must be told of that, too: it
// has seen it, though the two looks found the same.
func TestWatchTellsOfWhatHasGoneAgain(t *testing.T) {
	t.Parallel()
	dir := storeDir(t)
	b := openBackend(t, dir)
	s := openTestSession(t, dir)
	ctx, cancel := context.WithTimeout(patient(t), patience)
	defer cancel()
	told := 0
	err := b.Watch(ctx, "name", func() {
		switch told++; told {
		case 1:
			e := s.Ticket(mutexRequest("name", "id")).(*ticket)
			if _, err := e.Enqueue(ctx); err != nil {
				t.Error(err)
			}
			leave(t, e)
		case 2:
			cancel()
		}
	})
	if told < 2 || !errors.Is(err, context.Canceled) {
		t.Errorf("told %d times: %v", told, err)
	}
}

func TestDiagnose(t *testing.T) {
	t.Parallel()
	dir := storeDir(t)
	b := openBackend(t, dir)
	worst := func() (bad []string) {
		t.Helper()
		findings, err := b.Diagnose(patient(t))
		if err != nil {
			t.Fatal(err)
		}
		if len(findings) < 3 {
			t.Errorf("few findings: %v", findings)
		}
		for _, f := range findings {
			if f.Level == driver.Bad {
				bad = append(bad, f.Text)
			}
		}
		return bad
	}
	if bad := worst(); bad != nil {
		t.Errorf("a new store is bad: %v", bad)
	}
	if err := os.Remove(filepath.Join(dir, queuesDirName, "07")); err != nil {
		t.Fatal(err)
	}
	if bad := worst(); len(bad) != 1 || !strings.Contains(bad[0], "q/07") {
		t.Errorf("a queue file is missing, and bad is %v", bad)
	}
}
