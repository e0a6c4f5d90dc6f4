package main

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/CycloneDX/cyclonedx-go"
)

const version = "v0.77.0"

// made is the release that all tests look at: of this commit, for this machine's platform, or for
// all with HASP_RELEASE=all. Directories are removed by TestMain.
var made = sync.OnceValues(func() (*release, error) {
	r := &release{version: version, platforms: []string{"linux/" + runtime.GOARCH}}
	if os.Getenv("HASP_RELEASE") == "all" {
		r.platforms = strings.Split(allPlatforms, ",")
	}
	clone, err := tagged()
	if err != nil {
		return nil, err
	}
	return r, makeIn(r, clone, filepath.Join(temp, "first"))
})

var temp string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if temp, err = os.MkdirTemp("", "hasp-release-test-"); err != nil {
			panic(err)
		}
		defer func() {
			err := errors.Join(execute("chmod", "-R", "u+w", temp), os.RemoveAll(temp)) // Go makes its cache read-only
			if err != nil {
				panic(err)
			}
		}()
		return m.Run()
	}())
}

// makeIn makes the release below dir, from a clone of a repository that has the version's tag.
func makeIn(r *release, repository, dir string) error {
	r.root, r.out = filepath.Join(dir, "hasp"), filepath.Join(dir, "dist")
	if err := execute("git", "clone", "-q", repository, r.root); err != nil {
		return err
	}
	if err := execute("git", "-C", r.root, "checkout", "-q", r.version); err != nil {
		return err
	}
	return r.make()
}

// tagged is a clone of the last commit with the tags of the version. From then on Go takes our
// modules from what stands for their proxy, into a cache of the test's own, and those of other
// people from where they are.
var tagged = sync.OnceValues(func() (string, error) {
	clone, proxy := filepath.Join(temp, "tagged"), filepath.Join(temp, "proxy")
	if err := execute("git", "clone", "-q", "../..", clone); err != nil {
		return "", err
	}
	for _, setting := range []string{"user.name=Ana Example", "user.email=ana@example.org"} {
		name, value, _ := strings.Cut(setting, "=")
		if err := execute("git", "-C", clone, "config", name, value); err != nil {
			return "", err
		}
	}
	if err := execute("go", "-C", clone, "run", "./internal/modules", "release", version, proxy); err != nil {
		return "", err
	}
	out, err := exec.Command("go", "env", "GOMODCACHE", "GOPROXY").Output()
	if err != nil {
		return "", err
	}
	cache, usual, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return clone, errors.Join(
		os.Setenv("GOPROXY", "file://"+filepath.ToSlash(proxy)+",file://"+filepath.ToSlash(filepath.Join(cache, "cache", "download"))+","+usual),
		os.Setenv("GOMODCACHE", filepath.Join(temp, "modules")), os.Setenv("GONOSUMDB", "*"))
})

// execute runs a command, outside the workspace.
func execute(name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Env = append(cmd.Environ(), "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

func released(t *testing.T) *release {
	t.Helper()
	r, err := made()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func do(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// tree is the content of all files below dir, and their modes.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		all[strings.TrimPrefix(path, dir)] = info.Mode().String() + " " + string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Another directory makes the same bytes; with HASP_RELEASE=all also another cache, so that Go
// compiles everything a second time. Another version makes others.
func TestSameBytes(t *testing.T) {
	first := released(t)
	if os.Getenv("HASP_RELEASE") == "all" {
		t.Setenv("GOCACHE", filepath.Join(temp, "cache"))
	}
	again := &release{version: version, platforms: first.platforms}
	clone, err := tagged()
	if err == nil {
		err = makeIn(again, clone, filepath.Join(temp, "a second directory"))
	}
	if err != nil {
		t.Fatal(err)
	}
	want, got := tree(t, first.out), tree(t, again.out)
	if len(want) < 5 {
		t.Fatalf("made: %d files", len(want))
	}
	for name, data := range want {
		if got[name] != data {
			t.Errorf("%s differs", name)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d files, and %d", len(want), len(got))
	}
	if err := again.make(); err == nil || !strings.Contains(err.Error(), "is there already") {
		t.Errorf("a second time into the same directory: %v", err)
	}
	again.version, again.out = "v0.78.0", filepath.Join(temp, "third")
	if err := again.make(); err == nil || !strings.Contains(err.Error(), "git checkout v0.78.0") {
		t.Errorf("not the commit of the tag: %v", err)
	}
	do(t, "git", "-C", again.root, "tag", again.version)
	again.platforms = first.platforms[:1]
	if err := again.make(); err != nil {
		t.Fatal(err)
	}
	binary := "/bin/linux_" + runtime.GOARCH + "/hasp"
	if other := tree(t, again.out); runtime.GOARCH == "amd64" && (other[binary] == "" || other[binary] == want[binary]) {
		t.Error("another version makes the same binary")
	}
	do(t, "sh", "-c", "cd '"+first.out+"' && sha256sum -c --quiet SHA256SUMS")
}

func TestRefusals(t *testing.T) {
	clone := filepath.Join(t.TempDir(), "hasp")
	do(t, "git", "clone", "-q", "../..", clone)
	for _, r := range []release{{version: "1.2"}, {version: ""}, {version: version, platforms: []string{"plan9/arm"}}} {
		r.root, r.out = clone, filepath.Join(t.TempDir(), "dist")
		if err := r.make(); err == nil {
			t.Errorf("made: %+v", r)
		}
	}
	if err := os.WriteFile(filepath.Join(clone, "new"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := release{root: clone, version: version, out: filepath.Join(t.TempDir(), "dist")}
	if err := r.make(); err == nil || !strings.Contains(err.Error(), "commit or remove") {
		t.Errorf("with a file that is not committed: %v", err)
	}
}

// A binary for Linux needs no library and no loader.
func TestStatic(t *testing.T) {
	r := released(t)
	for _, platform := range r.platforms {
		goos, goarch, _ := strings.Cut(platform, "/")
		path := filepath.Join(r.out, "bin", goos+"_"+goarch, "hasp")
		if info, err := os.Stat(path); err != nil || info.Size() < 1<<20 || info.Size() > 40<<20 {
			t.Errorf("%s: %v, %v", path, info, err)
		}
		if goos != "linux" {
			continue
		}
		f, err := elf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		libraries, _ := f.ImportedLibraries()
		loader := slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
		if len(libraries) > 0 || loader {
			t.Errorf("%s: libraries %v, loader %t", path, libraries, loader)
		}
		_ = f.Close()
	}
}

// The list of what is in a binary has the stores' clients with their checksums, and ours.
func TestSBOM(t *testing.T) {
	r := released(t)
	base := fmt.Sprintf("hasp_%s_linux_%s.cdx.json", strings.TrimPrefix(version, "v"), runtime.GOARCH)
	data, err := os.ReadFile(filepath.Join(r.out, base))
	if err != nil {
		t.Fatal(err)
	}
	bom := cyclonedx.NewBOM()
	if err := cyclonedx.NewBOMDecoder(bytes.NewReader(data), cyclonedx.BOMFileFormatJSON).Decode(bom); err != nil {
		t.Fatal(err)
	}
	hashed := map[string]bool{}
	for _, c := range *bom.Components {
		hashed[c.Name] = c.Hashes != nil
		if c.Version == "" || !strings.HasPrefix(c.PackageURL, "pkg:golang/") {
			t.Errorf("%+v", c)
		}
	}
	for name, want := range map[string]bool{
		"github.com/redis/rueidis": true, "go.etcd.io/etcd/client/v3": true, "github.com/jackc/pgx/v5": true, "std": false,
		"github.com/hasplock/hasp": true, "github.com/hasplock/hasp/etcdlock": true,
	} {
		if got, there := hashed[name]; !there || got != want {
			t.Errorf("%s: there %t, with a hash %t", name, there, got)
		}
	}
	if _, there := hashed["github.com/rogpeppe/go-internal"]; there {
		t.Error("what only tests link is in it")
	}
	if own := bom.Metadata.Component; own.Version != version || own.Name != "github.com/hasplock/hasp/cmd/hasp" {
		t.Errorf("%+v", own)
	}
}

// hasp says its version and which stores are in.
func TestVersion(t *testing.T) {
	r := released(t)
	var v struct {
		Version, Revision string
		Stores            []string
	}
	out := do(t, filepath.Join(r.out, "bin", "linux_"+runtime.GOARCH, "hasp"), "version", "--json")
	if err := json.Unmarshal([]byte(out), &v); err != nil || v.Version != version || v.Revision == "" {
		t.Errorf("%s, %v", out, err)
	}
	for _, scheme := range []string{"etcd", "file", "mysql", "postgres", "redis", "redlock", "zookeeper"} {
		if !slices.Contains(v.Stores, scheme) {
			t.Errorf("without %s: %s", scheme, out)
		}
	}
}

// need skips a test of a tool that is not there, and fails where CI demands all.
func need(t *testing.T, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); errors.Is(err, exec.ErrNotFound) {
			if os.Getenv("REQUIRE_BACKENDS") == "1" && tool != "systemd-analyze" {
				t.Fatalf("there is no %s", tool)
			}
			t.Skipf("there is no %s", tool)
		}
	}
}
