package main

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestChoose(t *testing.T) {
	all := len(pairs) + len(specials) + len(controls)
	for expression, want := range map[string]int{"": all, "no such pair": 0, "^control": len(controls), "flock": 1, "five servers \\+ redsync": 1} {
		if got := choose(regexp.MustCompile(expression), "new"); len(got) != want {
			t.Errorf("%q chooses %d, want %d", expression, len(got), want)
		}
	}
}

// Pairs run at the same time: two on one name of one store would be in each other's way,
// and two of one title could not be chosen or told apart.
func TestPairsAreApart(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range choose(regexp.MustCompile(""), "new") {
		address, _, _ := strings.Cut(p.url, "?")
		for _, key := range []string{"title " + p.title(), "name " + address + " " + p.name} {
			if seen[key] {
				t.Errorf("twice: %s", key)
			}
			seen[key] = true
		}
	}
}

// The clients know every term that a pair uses.
func TestPairsAreComplete(t *testing.T) {
	known := map[string]bool{}
	for _, s := range steps {
		known[s.name] = true
	}
	for _, p := range choose(regexp.MustCompile(""), "new") {
		if p.special != nil {
			continue
		}
		if _, ok := clients[p.library]; p.program == golang && !ok {
			t.Errorf("%s: no client %q", p.title(), p.library)
		}
		for _, s := range p.expect {
			if !known[s] {
				t.Errorf("%s: no step %q", p.title(), s)
			}
		}
	}
}

// Both sets have the same packages, and an old one is not the new one's again.
func TestVersions(t *testing.T) {
	of := map[string]map[string]map[string]string{}
	for _, set := range []string{"new", "old"} {
		all, err := versions(set)
		if err != nil {
			t.Fatal(err)
		}
		of[set] = all
	}
	for _, language := range []string{"java", "python", "node"} {
		now, old := of["new"][language], of["old"][language]
		names := slices.Sorted(maps.Keys(now))
		if len(names) == 0 || !slices.Equal(names, slices.Sorted(maps.Keys(old))) || maps.Equal(now, old) {
			t.Errorf("%s has now %v, and of old %v", language, now, old)
		}
	}
	if all, err := versions("ancient"); err == nil {
		t.Errorf("of no set: %v", all)
	}
}

// The old versions' run has the pairs of which there is an old version, the controls, and
// for a pair that its old version cannot play what shows so.
func TestChooseOld(t *testing.T) {
	shown := 0
	for _, p := range choose(regexp.MustCompile(""), "old") {
		if p.program == golang && p.expect == nil {
			t.Errorf("%s has no old version", p.title())
		}
		if p.old != nil {
			shown++
			if p.special == nil {
				t.Errorf("%s plays the steps", p.title())
			}
		}
	}
	if shown == 0 {
		t.Error("no fault is shown")
	}
	for _, p := range choose(regexp.MustCompile("kazoo ReadLock"), "new") {
		if p.special != nil {
			t.Errorf("%s plays no steps with the new version", p.title())
		}
	}
}

// A folder has its name only when it is complete, and is made once.
func TestFolder(t *testing.T) {
	c := &cache{dir: filepath.Join(t.TempDir(), "not", "yet"), set: "new"}
	cut := errors.New("cut off")
	if dir, err := c.folder("python", func(string, map[string]string) error { return cut }); err != cut {
		t.Fatalf("an installation that fails: %q, %v", dir, err)
	}
	if left, err := os.ReadDir(c.dir); err != nil || len(left) > 0 {
		t.Errorf("it leaves %v, %v", left, err)
	}
	made := 0
	var dirs []string
	for range 2 {
		dir, err := c.folder("python", func(dir string, packages map[string]string) error {
			made++
			if packages["kazoo"] == "" {
				t.Errorf("packages %v", packages)
			}
			return os.WriteFile(filepath.Join(dir, "installed"), nil, 0o644)
		})
		if err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, dir)
	}
	if made != 1 || dirs[0] != dirs[1] {
		t.Errorf("made %d times, in %q", made, dirs)
	}
	old := &cache{dir: c.dir, set: "old"}
	if dir, err := old.folder("python", func(string, map[string]string) error { return nil }); err != nil || dir == dirs[0] {
		t.Errorf("the old versions are kept in %q, %v", dir, err)
	}
	for _, f := range []string{"installed", "client.py"} {
		if _, err := os.Stat(filepath.Join(dirs[0], f)); err != nil {
			t.Error(err)
		}
	}
}

// Our own client, on the one store that needs no server.
func TestOurs(t *testing.T) {
	dir := "file://" + t.TempDir()
	open := func(kind string) locker {
		l, version, err := newOurs(t.Context(), kind, dir, calm)
		if err != nil || version != "hasp" {
			t.Fatal(version, err)
		}
		return l
	}
	a, b, reader, second := open(""), open(""), open("read"), open("read")
	if err := a.lock("x"); err != nil {
		t.Fatal(err)
	}
	if held, err := a.check(); !held || err != nil {
		t.Errorf("check: %v, %v", held, err)
	}
	for label, l := range map[string]locker{"another": b, "a reader": reader} {
		if ok, err := l.try("x"); ok || err != nil {
			t.Errorf("%s tries: %v, %v", label, ok, err)
		}
	}
	if err := a.unlock(); err != nil {
		t.Error(err)
	}
	if held, err := a.check(); held || !errors.Is(err, errLost) {
		t.Errorf("check after the unlock: %v, %v", held, err)
	}
	if err := reader.lock("x"); err != nil {
		t.Fatal(err)
	}
	if ok, err := second.try("x"); !ok || err != nil {
		t.Errorf("a second reader tries: %v, %v", ok, err)
	}
	if ok, err := b.try("x"); ok || err != nil {
		t.Errorf("a writer beside readers tries: %v, %v", ok, err)
	}
}

// Arguments that are none are refused before anything is opened.
func TestBeClient(t *testing.T) {
	for _, args := range [][]string{{}, {"hasp", "-", "file:///nowhere"}, {"no such library", "-", "x", "1000"}, {"blind", "-", "x", "soon"}} {
		if err := beClient(args); err == nil {
			t.Errorf("%q is taken", args)
		}
	}
}

// The leases and the patience stand in the relation that lapse.go and process.go rely on.
func TestTimes(t *testing.T) {
	if longest := short << (attempts - 1); calm <= patience || longest+30*time.Second > patience {
		t.Errorf("calm %s, patience %s, short up to %s", calm, patience, longest)
	}
}
