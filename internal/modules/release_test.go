package main

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testtier"
)

// rehearsal is a clone with two releases, as their users find them: in a module proxy, from an
// empty home. What other people's modules they need come from the cache that has built ours, if
// they are there.
type rehearsal struct {
	t     *testing.T
	clone string
}

const first, second = "v0.77.0", "v0.77.1"

// removed is exported by the first release, and by the second one no more.
const removed = "\n// Removed breaks programs.\nfunc Removed() {}\n"

func rehearse(t *testing.T) *rehearsal {
	r := &rehearsal{t: t, clone: filepath.Join(t.TempDir(), "clone")}
	r.do(".", "git", "clone", "-q", r.output(".", "git", "rev-parse", "--show-toplevel"), r.clone)
	r.do(r.clone, "git", "config", "user.name", "releaser")
	r.do(r.clone, "git", "config", "user.email", "releaser@example.com")
	t.Chdir(r.clone)
	// One proxy has both: of two, Go would ask the first for all modules that a path may be of, and
	// stop where its cache knows one of them.
	both := t.TempDir()
	r.edit("pglock/errors.go", func(text string) string { return text + removed })
	for _, version := range []string{first, second} {
		before := r.output(".", "git", "rev-parse", "HEAD")
		proxy := filepath.Join(t.TempDir(), "proxy")
		if err := release(version, proxy); err != nil {
			t.Fatal(err)
		}
		if after := r.output(".", "git", "rev-parse", "HEAD"); after != before || r.output(".", "git", "status", "--porcelain") != "" {
			t.Errorf("the branch has moved from %s to %s, or files have changed", before, after)
		}
		for _, again := range []string{"1.2", version} {
			if err := release(again, filepath.Join(t.TempDir(), "none")); err == nil {
				t.Errorf("released: %s", again)
			}
		}
		r.do(".", "cp", "-r", proxy+"/.", both)
		if version == first {
			r.edit("pglock/errors.go", func(text string) string { return strings.TrimSuffix(text, removed) })
			err := release(second, filepath.Join(t.TempDir(), "none"))
			if err == nil || !strings.Contains(err.Error(), "what breaks programs that use "+first+":\n") || !strings.Contains(err.Error(), "Removed: removed") {
				t.Errorf("a patch that breaks programs: %v", err)
			}
			r.edit("pglock/errors.go", func(text string) string { return text + removed })
		}
		r.edit("doc.go", func(text string) string { return text + "\n" }) // the next release's files differ
	}
	cache, usual, build := r.output(".", "go", "env", "GOMODCACHE"), r.output(".", "go", "env", "GOPROXY"), r.output(".", "go", "env", "GOCACHE")
	home := t.TempDir()
	for key, value := range map[string]string{
		"HOME": home, "GOPATH": filepath.Join(home, "go"), "GOMODCACHE": filepath.Join(home, "go", "pkg", "mod"), "GOBIN": filepath.Join(home, "bin"),
		"GOCACHE": build, // for speed alone
		"GOWORK":  "off", "GOFLAGS": "-modcacherw", "GONOSUMDB": "*",
		"GOPROXY": "file://" + filepath.ToSlash(both) + ",file://" + filepath.ToSlash(filepath.Join(cache, "cache", "download")) + "," + usual,
	} {
		t.Setenv(key, value)
	}
	return r
}

// edit commits a change of a file.
func (r *rehearsal) edit(file string, change func(string) string) {
	r.t.Helper()
	text, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, []byte(change(string(text))), 0o600)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	r.do(".", "git", "commit", "-qam", "another one")
}

// of is the rehearsal as a subtest has it, which fails and ends alone.
func (r *rehearsal) of(t *testing.T) *rehearsal { return &rehearsal{t, r.clone} }

func (r *rehearsal) do(dir, name string, args ...string) string {
	r.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (r *rehearsal) output(dir, name string, args ...string) string {
	r.t.Helper()
	return strings.TrimSpace(r.do(dir, name, args...))
}

// program makes a module with one file, and takes ours at a version.
func (r *rehearsal) program(text, version string, modules ...string) string {
	r.t.Helper()
	dir := r.t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
	r.do(dir, "go", "mod", "init", "example.com/app")
	for _, m := range modules {
		r.do(dir, "go", "get", importPath(m)+"@"+version)
	}
	r.do(dir, "go", "mod", "tidy")
	return dir
}

// A release can be installed and imported, each module alone: by go, from what a module proxy has.
func TestRelease(t *testing.T) {
	testtier.Long(t)
	redis := backends.StartRedis(t, backends.RedisOptions{}) // as all servers, before HOME is another
	servers := []string{
		"redis://" + redis.Addr,
		"etcd://" + backends.StartEtcd(t, backends.EtcdOptions{}).Addr,
		backends.StartPostgres(t, backends.PostgresOptions{}).URL(),
		backends.StartMariaDB(t, backends.MariaDBOptions{}).URL(),
		"zookeeper://" + backends.StartZooKeeper(t, backends.ZooKeeperOptions{}).Addr,
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	r := rehearse(t)

	t.Run("EachBuildsAtItsTag", func(t *testing.T) {
		r := r.of(t)
		r.do(r.clone, "git", "checkout", "-q", first)
		defer r.do(r.clone, "git", "checkout", "-q", "-")
		for _, dir := range append(published, "dev", "examples", "tests") {
			r.do(filepath.Join(r.clone, dir), "go", "list", "-deps", "-test", "./...") // a sum that is missing is an error
			if out := r.output(r.clone, "git", "status", "--porcelain"); out != "" {
				t.Errorf("%s has changed %s", dir, out)
			}
		}
	})
	t.Run("Readme", func(t *testing.T) {
		r := r.of(t)
		text := regexp.MustCompile("(?s)```go\n(package main.*?)```").FindStringSubmatch(string(readme))
		if text == nil {
			t.Fatal("the README has no program")
		}
		dir := r.program(strings.Replace(text[1], "/tmp/hasp-example", t.TempDir(), 1), first, ".")
		if out := r.output(dir, "go", "run", "."); !strings.HasPrefix(out, "only one of us is here, with token ") {
			t.Errorf("it prints %q", out)
		}
	})
	t.Run("Command", func(t *testing.T) {
		r := r.of(t)
		r.do(".", "go", "install", "-tags", "grpcnotrace,noetcd,nokube,nomysql,nopostgres,nos3,nozookeeper", importPath("cmd/hasp")+"@"+first)
		out := r.output(".", filepath.Join(os.Getenv("GOBIN"), "hasp"), "run", "--store", "redis://"+redis.Addr, "job", "--", "echo", "done")
		if out != "done" {
			t.Errorf("it prints %q", out)
		}
		if out := r.do(".", filepath.Join(os.Getenv("GOBIN"), "hasp"), "version"); !strings.Contains(out, first) {
			t.Errorf("its version is %s", out)
		}
		r.do(".", "go", "install", "-n", importPath("cmd/hasp")+"@"+first) // resolves what all stores need, and compiles nothing
		r.do(".", "go", "install", "-tags", "fileonly", importPath("torture/hasp-torture")+"@"+first)
		if out := r.do(".", filepath.Join(os.Getenv("GOBIN"), "hasp-torture"), "--dry-run", "--local", "file"); !strings.Contains(out, "pause") {
			t.Errorf("hasp-torture plans %q", out)
		}
		r.paste(t, string(readme), redis.Addr)
	})
	t.Run("OneAloneRaised", func(t *testing.T) {
		r := r.of(t)
		dir := r.program(excluding, first, "redislock/goredis")
		r.excludes(dir, "redis://"+redis.Addr, first, first)
		for raised, want := range map[string][2]string{".": {second, first}, "redislock": {second, second}} {
			dir := r.program(excluding, first, "redislock/goredis")
			r.do(dir, "go", "get", importPath(raised)+"@"+second)
			r.do(dir, "go", "mod", "tidy")
			r.excludes(dir, "redis://"+redis.Addr, want[0], want[1])
		}
	})
	t.Run("EachWithANewRoot", func(t *testing.T) {
		r := r.of(t)
		imports, modules := "\t_ \""+importPath("filelock")+"\"\n", []string{}
		for _, dir := range published {
			if strings.HasSuffix(dir, "lock") {
				imports += "\t_ \"" + importPath(dir) + "\"\n"
				modules = append(modules, dir)
			}
		}
		dir := r.program(strings.Replace(excluding, redisDrivers, imports, 1), first, modules...)
		r.do(dir, "go", "get", importPath(".")+"@"+second)
		r.do(dir, "go", "mod", "tidy")
		versions := r.do(dir, "go", "list", "-m", "all")
		for _, m := range modules {
			if !strings.Contains(versions, importPath(m)+" "+first+"\n") {
				t.Errorf("%s is not at %s:\n%s", m, first, versions)
			}
		}
		r.do(dir, "go", "build", "-ldflags=-s -w", "-o", "app", ".")
		for _, url := range append(servers, "file://"+t.TempDir()) {
			r.exclude(dir, url)
		}
	})
	t.Run("Toolchains", func(t *testing.T) {
		r := r.of(t)
		for version := range strings.SplitSeq(*toolchains, ",") {
			if version == "" {
				t.Skip("-toolchains names none: make nightly takes the oldest that go.mod allows, and the newest")
			}
			t.Setenv("GOTOOLCHAIN", version)
			dir := r.program(excluding, first, "redislock/goredis")
			r.excludes(dir, "redis://"+redis.Addr, first, first)
			if out := r.output(dir, "go", "version", filepath.Join(dir, "app")); !strings.HasSuffix(out, " "+version) {
				t.Errorf("it was built by %q", out)
			}
		}
	})
}

// paste runs the lines of the README that begin with hasp, by the command that Command has installed,
// and the one for those who have nothing but a clone. Only what a reader must have is put there: a
// path, two scripts, the address of a server and a git repository. The default store of root is the
// machine's, so the test names one.
func (r *rehearsal) paste(t *testing.T, readme, redis string) {
	cloned := regexp.MustCompile("```sh\n(go run .*/cmd/hasp run .*)\n```").FindStringSubmatch(readme)
	lines := regexp.MustCompile("(?s)```sh\n(hasp run .*?)```").FindStringSubmatch(readme)
	if cloned == nil || lines == nil {
		t.Fatal("the README has no hasp run")
	}
	t.Setenv("PATH", os.Getenv("GOBIN")+string(os.PathListSeparator)+os.Getenv("PATH"))
	t.Setenv("HASP_STORE", "file://"+t.TempDir())
	dir := t.TempDir()
	for _, script := range []string{"deploy.sh", "report"} {
		if err := os.WriteFile(filepath.Join(dir, script), []byte("#!/bin/sh\necho done: "+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	r.do(dir, "git", "init", "-q")
	text := strings.NewReplacer("db.internal", redis, "--min-hold 1m", "--min-hold 1ms").Replace(lines[1])
	out := r.do(dir, "sh", "-ec", text+"hasp release --mine\nHASP_STORE=git hasp release --mine --pid $PPID testdb\nhasp who deploy")
	for _, want := range []string{"done: deploy.sh\n", "done: report\n", "\"state\":\"held\",\"name\":\"testdb\"", "1 +holds .*hasp hold", "\"deploy\" is free"} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("no %s in what the README's lines print:\n%s", want, out)
		}
	}
	t.Setenv("GOWORK", "")
	if out := r.do(r.clone, "sh", "-ec", cloned[1]); !strings.HasSuffix(out, "only one of us runs this\n") {
		t.Errorf("in the clone: %s", out)
	}
}

var toolchains = flag.String("toolchains", "", "versions of Go that a program is built with, such as go1.26.0,go1.27.4")

const redisDrivers = `	_ "github.com/hasplock/hasp/redislock"
	_ "github.com/hasplock/hasp/redislock/goredis"
`

// excluding takes a lock, and runs itself a second time meanwhile, which must find it busy.
const excluding = `package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"

	"github.com/hasplock/hasp"
` + redisDrivers + `)

func main() {
	c, err := hasp.Open(context.Background(), os.Args[1])
	if err != nil {
		panic(err)
	}
	defer c.Close()
	lease, err := c.Mutex("rehearsal").TryLock(context.Background())
	if len(os.Args) > 2 {
		fmt.Println("busy:", errors.Is(err, hasp.ErrBusy))
		return
	}
	if err != nil {
		panic(err)
	}
	out, err := exec.Command(os.Args[0], os.Args[1], "second").CombinedOutput()
	fmt.Print(string(out), err, "\n")
	if err := lease.Release(context.Background()); err != nil {
		panic(err)
	}
}
`

// excludes runs the program in dir, which must have these versions of the root and of redislock.
func (r *rehearsal) excludes(dir, url, root, redislock string) {
	r.t.Helper()
	versions := r.do(dir, "go", "list", "-m", "all")
	for _, want := range []string{importPath(".") + " " + root, importPath("redislock") + " " + redislock, importPath("redislock/goredis") + " " + first} {
		if !strings.Contains(versions, want+"\n") {
			r.t.Errorf("not %s:\n%s", want, versions)
		}
	}
	r.do(dir, "go", "build", "-o", "app", ".")
	r.exclude(dir, url)
}

// exclude runs the program that is built in dir.
func (r *rehearsal) exclude(dir, url string) {
	r.t.Helper()
	if out := r.output(dir, filepath.Join(dir, "app"), url); out != "busy: true\n<nil>" {
		r.t.Errorf("two processes of %s at %s: %q", dir, url, out)
	}
}
