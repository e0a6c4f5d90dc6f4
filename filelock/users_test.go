//go:build linux || darwin || freebsd

package filelock

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

// Users and a group that need no line in /etc/passwd. Ana and Ben are members of the group, Eve is
// not.
const (
	ana, ben, eve = 64001, 64002, 64003
	deploy        = 64100
)

func init() {
	jobs["member"] = func(j job) error {
		safetyNet = time.Hour
		unix.Umask(0o077) // the store's mode holds under every umask
		return holdJob(j)
	}
}

// usersDir is a directory that every user can pass.
func usersDir(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 || runtime.GOOS != "linux" {
		t.Skip("needs Linux and root, to become several users")
	}
	dir, err := os.MkdirTemp("", "hasp-users-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	return dir
}

// startAs starts a process that locks as another user.
func startAs(t *testing.T, uid uint32, url string) *child {
	t.Helper()
	groups := []uint32{}
	if uid != eve {
		groups = append(groups, deploy)
	}
	return startWith(t, job{Do: "member", Dir: url, Name: "a"},
		&syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid, Groups: groups}})
}

// handsOver has two users lock by turns: a release and a death must reach the other's waiter at
// once, since waiters look by themselves every hour only.
func handsOver(t *testing.T, url string, one, two uint32) {
	t.Helper()
	a := startAs(t, one, url)
	a.must("holds")
	b := startAs(t, two, url)
	queue(t, url, 2, b)
	_ = a.in.Close() // releases
	b.must("holds")
	c := startAs(t, one, url)
	queue(t, url, 2, c)
	if err := b.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	c.must("holds")
	_ = c.in.Close()
	for _, closes := range []*child{a, c} { // until then the store is in use
		if err := closes.wait(); err != nil {
			t.Error(err)
		}
	}
	_ = b.wait()
}

// queue waits, as root, until the queue is that long.
func queue(t *testing.T, url string, n int, waiter *child) {
	t.Helper()
	b, err := Open(patient(t), "file://"+url)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for {
		list, err := b.List(patient(t), "a", 0)
		if err != nil {
			t.Fatal(err)
		}
		if len(list) == n {
			return
		}
		select {
		case said := <-waiter.lines:
			t.Fatalf("the waiter said %q", said)
		case <-time.After(time.Millisecond):
		}
	}
}

// files lists what is in a store, with owner and mode.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &st)
		}
		found[strings.TrimPrefix(path, dir)] = fmt.Sprintf("%d:%d %o", st.Uid, st.Gid, st.Mode&0o7777)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// The members of a group share a store that the first of them makes; root may use it, too; others
// are refused.
func TestGroupStore(t *testing.T) {
	t.Parallel()
	dir := usersDir(t) + "/store"
	url := fmt.Sprintf("%s?mode=0770&group=%d", dir, deploy)
	handsOver(t, url, ana, ben)
	handsOver(t, url, ben, ana)
	handsOver(t, url, 0, ben)
	found := files(t, dir)
	for name, want := range map[string]string{
		"": fmt.Sprintf("%d:%d 2770", ana, deploy), "/q": fmt.Sprintf("%d:%d 2770", ana, deploy), "/e": fmt.Sprintf("%d:%d 2770", ana, deploy),
		"/s": fmt.Sprintf("%d:%d 2770", ana, deploy), "/q/3f": fmt.Sprintf("%d:%d 660", ana, deploy), "/format": fmt.Sprintf("%d:%d 660", ana, deploy),
	} {
		if found[name] != want {
			t.Errorf("%s has %s, want %s", dir+name, found[name], want)
		}
	}

	e := startAs(t, eve, url)
	said := e.says()
	for _, part := range []string{dir, "02770", fmt.Sprint(deploy), fmt.Sprintf("uid %d outside that group", eve), "let root add the user", "permission denied"} {
		if !strings.Contains(said, part) {
			t.Errorf("a stranger is told %q, without %q", said, part)
		}
	}
}

// Root makes a group's directory by hand, and the members need no parameters. It is not parallel,
// for the reason that usable gives.
func TestGroupStoreMadeByRoot(t *testing.T) {
	dir := usersDir(t) + "/store"
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, 0, deploy), unix.Chmod(dir, 0o2770)); err != nil {
		t.Fatal(err)
	}
	handsOver(t, dir, ana, ben)
	handsOver(t, dir, ben, 0)

	// A member who died while making a file leaves one that others cannot open: the next one who is
	// alone makes it anew.
	if err := os.Chmod(dir+"/q/07", 0o600); err != nil {
		t.Fatal(err)
	}
	handsOver(t, dir, ben, ana)
	if got, want := files(t, dir)["/q/07"], fmt.Sprintf("%d:%d 660", ben, deploy); got != want {
		t.Errorf("the file has %s, want %s", got, want)
	}
}

// Every user locks in a directory of root, and cannot put files into the place of others'.
func TestStoreForAllUsers(t *testing.T) {
	t.Parallel()
	above := usersDir(t)
	dir := above + "/store"
	url := dir + "?mode=1777"
	if said := startAs(t, eve, url).says(); !strings.Contains(said, "root must make a store for all users") {
		t.Errorf("a user is told %q", said)
	}
	b, err := Open(patient(t), "file://"+url)
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
	handsOver(t, url, ana, eve)
	handsOver(t, dir, eve, 0)
	handsOver(t, dir, 0, ana)
	found := files(t, dir)
	for name, want := range map[string]string{
		"": "0:0 1777", "/q": "0:0 755", "/s": "0:0 1777", "/e": "0:0 1777", "/q/00": "0:0 666", "/format": "0:0 666",
	} {
		if found[name] != want {
			t.Errorf("%s has %s, want %s", dir+name, found[name], want)
		}
	}

	// A note that is a hard link to a file of root must not be read out.
	secret := above + "/secret"
	note := filepath.Join(dir, notesDir, noteName(newKey("a")))
	if err := errors.Join(os.WriteFile(secret, []byte("password"), 0o600), os.Link(secret, note)); err != nil {
		t.Fatal(err)
	}
	if said, err := openBackend(t, dir).LastEviction(patient(t), "a"); err == nil || said != "" {
		t.Errorf("read %q by a hard link, %v", said, err)
	}
	if err := os.Remove(note); err != nil {
		t.Fatal(err)
	}

	// A directory that a user has put in the place of one of the store's.
	if err := os.Chown(dir+"/s", eve, eve); err != nil {
		t.Fatal(err)
	}
	if _, err := New(patient(t), dir, nil); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("belongs to uid %d", eve)) {
		t.Errorf("a foreign directory in the store: %v", err)
	}
}

// Root looks at a user's private store, and leaves nothing there that the user could not use.
func TestRootLooks(t *testing.T) {
	t.Parallel()
	home := usersDir(t)
	dir := home + "/store"
	holder := startAs(t, ana, dir)
	holder.must("holds")
	before := files(t, dir)

	b := openBackend(t, dir)
	list, err := b.List(patient(t), "a", 0)
	if err != nil || len(list) != 1 {
		t.Fatalf("list: %v, %v", list, err)
	}
	if _, err := b.Diagnose(patient(t)); err != nil {
		t.Error(err)
	}
	if _, err := b.LastEviction(patient(t), "a"); err != nil {
		t.Error(err)
	}
	if err := b.Names(patient(t), "", func(name string) bool { return name == "a" }); err != nil {
		t.Error(err)
	}
	for what, err := range map[string]error{
		"a session": func() error { _, _, err := b.Open(patient(t), driver.SessionOptions{}); return err }(),
		"eviction":  b.Evict(patient(t), "a", list[0].ID, "because"),
	} {
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "root only looks") || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s by root: %v", what, err)
		}
	}
	if after := files(t, dir); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("a look changed the files: %v, before %v", after, before)
	}

	// The owner comes and goes while root looks, and a dead holder is not listed.
	holder.kill()
	if list, err := b.List(patient(t), "a", 0); err != nil || len(list) != 0 {
		t.Errorf("after the holder's death: %v, %v", list, err)
	}
	handsOver(t, dir, ana, ana)

	// A store that was never completed is not made by one who looks.
	empty := home + "/empty"
	if err := errors.Join(os.Mkdir(empty, 0o700), os.Chown(empty, ana, ana)); err != nil {
		t.Fatal(err)
	}
	if _, err := New(patient(t), empty, nil); err == nil || len(files(t, empty)) != 1 {
		t.Errorf("root made a store of another user: %v", err)
	}
}

// What is there already is refused if it is not what was asked for, and never changed.
func TestSharedDirectoryRefused(t *testing.T) {
	t.Parallel()
	above := usersDir(t)
	for name, c := range map[string]struct {
		mode          uint32
		uid, gid      int
		query, reason string
	}{
		"private":       {0o700, 0, 0, "?mode=0770&group=64100", "chgrp 64100"},
		"other group":   {0o2770, 0, 0, "?mode=0770&group=64100", "chgrp 64100"},
		"not inherited": {0o770, 0, deploy, "?mode=0770&group=64100", "chmod 2770"},
		"shared":        {0o2770, 0, deploy, "?mode=0700", "chmod 0700"},
		"planted group": {0o2770, eve, eve, "", "belongs to uid 64003"},
		"planted all":   {0o1777, eve, eve, "", "belongs to uid 64003"},
		"planted all 2": {0o1777, eve, eve, "?mode=1777", "belongs to uid 64003"},
		"not a store":   {0o1777, 0, 0, "", "mode=1777 in the URL"},
		"no sticky bit": {0o777, 0, 0, "?mode=1777", "chmod 1777"},
		"everybody's":   {0o777, 0, 0, "", "others may write"},
		"no setgid":     {0o770, 0, 0, "", "others may write"},
	} {
		dir := filepath.Join(above, strings.ReplaceAll(name, " ", "-"))
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, c.uid, c.gid), unix.Chmod(dir, c.mode)); err != nil {
			t.Fatal(err)
		}
		before := files(t, dir)
		_, err := hasp.Open(patient(t), "file://"+dir+c.query)
		if err == nil || !strings.Contains(err.Error(), c.reason) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %v, want one about %q", name, err, c.reason)
		}
		if after := files(t, dir); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("%s was changed: %v, before %v", name, after, before)
		}
	}
	for _, query := range []string{"mode=0777", "mode=rwx", "mode=0", "group=adm", "mode=0700&group=adm", "mode=0770&group=", "mode=0770&group=no-such-group", "mode=4294967296"} {
		if _, err := Open(patient(t), "file://"+above+"/x?"+query); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s: %v", query, err)
		}
	}
	if _, err := os.Lstat(above + "/x"); err == nil {
		t.Error("bad parameters have made a directory")
	}
}
