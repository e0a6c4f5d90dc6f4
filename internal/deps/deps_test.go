// Package deps holds no code: its test keeps every package's imports to the list below.
package deps

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/hasplock/hasp"

// reasons lists every module that ours may require, for code or for tests. A new one
// fails the build until it stands here, so that somebody has to say what it is for:
// each becomes part of what a user must trust, update and explain.
var reasons = map[string]string{
	"golang.org/x/sync":                      "hasp ls, top and the page read a few queues at a time",
	"golang.org/x/time":                      "serve: an error that comes often is logged now and then",
	"github.com/chromedp/cdproto":            "chromedp's messages; tests only",
	"github.com/chromedp/chromedp":           "shows pages in a real browser; tests only",
	"github.com/anishathalye/porcupine":      "checks recorded histories for linearizability; tests only",
	"github.com/bsm/redislock":               "redislock's tests contend with it for the same keys; tests only",
	"github.com/go-redsync/redsync/v4":       "the same; tests only",
	"github.com/caddyserver/certmagic":       "adapters: the certificates that machines get in turn",
	"github.com/go-co-op/gocron/v2":          "gocronhasp: the scheduler whose jobs it locks",
	"github.com/pressly/goose/v3":            "adapters: the migrations that it locks",
	"github.com/robfig/cron/v3":              "adapters: the scheduler whose jobs it locks",
	"github.com/tus/tusd/v2":                 "adapters: the uploads that servers share",
	"github.com/go-sql-driver/mysql":         "mysqllock's client; tests of sqlfence's dialect",
	"github.com/go-zookeeper/zk":             "zklock's client; the only one in Go that is maintained",
	"github.com/jackc/pgx/v5":                "pglock's and pgxfence's client; database/sql alone cannot wait for notifications",
	"github.com/prometheus/client_golang":    "promhasp: what it counts for",
	"github.com/redis/go-redis/v9":           "the client that most users have: redislock/goredis takes theirs",
	"github.com/redis/rueidis":               "redislock's and redlock's client; pipelines by itself, knows RESP3 push",
	"github.com/rogpeppe/go-internal":        "testscript runs the commands' scenarios; tests only",
	"github.com/spf13/cobra":                 "the command's subcommands and completion",
	"github.com/spf13/pflag":                 "cobra's flags",
	"go.etcd.io/etcd/api/v3":                 "etcdlock: the messages of etcd's client",
	"go.etcd.io/etcd/client/v3":              "etcdlock's client",
	"github.com/minio/minio-go/v7":           "s3lock's client: conditions on PUT, and its own retries can be switched off",
	"github.com/johannesboyne/gofakes3":      "s3lock's tests: a server of the protocol; tests only",
	"github.com/go-logr/logr":                "kubelock: by which its client is told not to write to stderr",
	"k8s.io/klog/v2":                         "kubelock's tests: the same for client-go's elector; tests only",
	"k8s.io/api":                             "kubelock: the type of a Lease",
	"k8s.io/apimachinery":                    "kubelock: what every object of Kubernetes has",
	"k8s.io/client-go":                       "kubelock's client, without its typed clients",
	"modernc.org/sqlite":                     "SQLite without cgo, to try sqlfence's dialect on; tests only",
	"go.opentelemetry.io/otel":               "otelhasp: what it traces for",
	"go.opentelemetry.io/otel/metric":        "otelhasp: what it counts for",
	"go.opentelemetry.io/otel/sdk":           "keeps spans; tests only",
	"go.opentelemetry.io/otel/sdk/metric":    "reads metrics; tests only",
	"go.opentelemetry.io/otel/trace":         "otelhasp: what it traces for",
	"pgregory.net/rapid":                     "drivertest/programs: draws random programs and makes those that fail smaller",
	"github.com/yuin/gopher-lua":             "runs the scripts of redislock in a simulation; tests only",
	"github.com/modelcontextprotocol/go-sdk": "hasp-mcp: the protocol that it speaks",
	"google.golang.org/grpc":                 "etcdlock: how etcd's client connects can only be said in its terms",
	"golang.org/x/sys":                       "flock, inotify, clocks and process control that package syscall lacks",
}

// mayImport lists what each package's code (not its tests) may import beside the
// standard library: packages of ours as "./path", the root as ".", others by module.
// Transitive imports need no separate list: each package of ours that it imports is
// held to its own line.
var mayImport = map[string][]string{
	// A program that imports hasp gets no client library that it did not ask for.
	".":         {"./driver", "./driver/kit/bootclock"},
	"./fencing": {}, // goes into the user's write path, beside a client of theirs

	// A fence is written for one client and links no other's. Those whose resource has
	// separate names encode the lock's as drivers do.
	"./fencing/filefence":     {"./fencing", "./internal/fstype"},
	"./fencing/httpfence":     {"./fencing"},
	"./fencing/sqlfence":      {"./fencing", "./fencing/retry"},
	"./pglock/pgxfence":       {"./fencing", "./fencing/retry", "./fencing/sqlfence", "github.com/jackc/pgx/v5"},
	"./redislock/redisfence":  {"./fencing", "./driver", "github.com/redis/rueidis"},
	"./etcdlock/etcdfence":    {"./fencing", "./fencing/retry", "./driver", "go.etcd.io/etcd/client/v3"},
	"./zklock/zkfence":        {"./fencing", "./fencing/retry", "./driver", "github.com/go-zookeeper/zk"},
	"./fencing/retry":         {"./fencing"},
	"./driver/kit/takennames": {},
	"./internal/fencetest":    {".", "./driver", "./fencing", "./hasptest", "./internal/testkit"}, // tests only: a real lock that is lost at will
	// A driver's author needs nothing but this.
	"./driver":              {},
	"./driver/tlsparams":    {"./driver"},                                                     // its own, so that only stores with TLS link that
	"./drivertest":          {".", "./driver", "./internal/rulecases", "./internal/faultnet"}, // a silent store
	"./hasptest":            {".", "./driver", "./internal/memstore"},                         // tests of programs that lock
	"./drivertest/programs": {".", "./driver", "./drivertest", "pgregory.net/rapid"},

	// A driver links its own store's client and no other's.
	"./caslock":           {"./driver/kit/bootclock", "./driver", "./driver/kit/keepalive"}, // every store that can compare and swap
	"./s3lock":            {"./driver", "./driver/tlsparams", "./caslock", "github.com/minio/minio-go/v7"},
	"./kubelock":          {"./driver", "./driver/kit/doctor", "./caslock", "github.com/go-logr/logr", "k8s.io/api", "k8s.io/apimachinery", "k8s.io/client-go"},
	"./memlock":           {"./driver", "./internal/memstore"},
	"./internal/memstore": {"./driver"},
	"./filelock":          {"./driver", "./driver/kit/doctor", "./driver/kit/signal", "./internal/fstype", "golang.org/x/sys"},
	"./zklock":            {"./driver/kit/bootclock", "./driver", "./driver/kit/doctor", "./driver/kit/signal", "./driver/tlsparams", "golang.org/x/sys", "github.com/go-zookeeper/zk", "./driver/kit/keepalive"},
	"./etcdlock":          {"./driver", "./driver/kit/doctor", "./driver/kit/signal", "./driver/tlsparams", "golang.org/x/sys", "go.etcd.io/etcd/client/v3", "go.etcd.io/etcd/api/v3", "google.golang.org/grpc"},
	"./redislock":         {"./driver/kit/bootclock", "./driver", "./driver/kit/doctor", "./driver/kit/signal", "./driver/kit/pushqueue", "golang.org/x/sys", "github.com/redis/rueidis", "./redislock/internal/redisconn", "./redislock/internal/setnx", "./redislock/internal/quarantine", "./driver/kit/keepalive"},
	"./redislock/redlock": {"./driver/kit/bootclock", "./driver", "./driver/kit/doctor", "./driver/kit/signal", "github.com/redis/rueidis", "./redislock/internal/redisconn", "./redislock/internal/setnx", "./redislock/internal/quarantine", "./driver/kit/keepalive"},
	"./pglock":            {"./driver/kit/bootclock", "./driver", "./driver/kit/connlock", "./driver/kit/doctor", "./driver/kit/pushqueue", "./driver/kit/takennames", "./driver/kit/watching", "./driver/kit/keepalive", "golang.org/x/sys", "github.com/jackc/pgx/v5"},
	"./httplock":          {"./driver", "./driver/tlsparams", "./internal/httpapi"},
	"./internal/httpapi":  {"./driver"}, // what httplock and hasp serve say to each other
	"./mysqllock":         {"./driver/kit/bootclock", "./driver", "./driver/kit/connlock", "./driver/kit/doctor", "./driver/kit/pushqueue", "./driver/kit/takennames", "./driver/kit/watching", "./driver/kit/keepalive", "./driver/tlsparams", "golang.org/x/sys", "github.com/go-sql-driver/mysql"},

	// How drivers wake waiters.
	"./driver/kit/signal":   {},
	"./driver/kit/watching": {}, // for pglock and mysqllock
	// The client's side of a queue whose grants are pushed, for those stores that keep one for us.
	"./driver/kit/connlock":  {"./driver", "./driver/kit/bootclock", "./driver/kit/keepalive"},
	"./driver/kit/pushqueue": {"./driver", "./driver/kit/signal"},
	"./driver/kit/doctor":    {"./driver"}, // the form of what drivers' Diagnose finds

	// What both Redis drivers need of a client, and the adapter for users of go-redis.
	"./redislock/internal/redisconn":  {"./driver", "./driver/kit/doctor", "./driver/tlsparams", "github.com/redis/rueidis"},
	"./driver/kit/bootclock":          {},
	"./driver/kit/keepalive":          {"./driver", "./driver/kit/bootclock"}, // what is left of an entry's time; what a renewal says that has not reached every entry
	"./redislock/internal/quarantine": {"./driver", "./redislock/internal/redisconn"},
	"./redislock/internal/setnx":      {"./redislock/internal/redisconn", "./redislock/internal/quarantine"}, // the scripts of redislock's strategy=setnx and of redlock
	"./redislock/goredis":             {"./driver", "./redislock", "./redislock/internal/redisconn", "github.com/redis/go-redis/v9"},

	// What users may add to a client, each with one library of theirs.
	"./promhasp":   {".", "./metering", "github.com/prometheus/client_golang"},
	"./otelhasp":   {".", "./metering", "go.opentelemetry.io/otel", "go.opentelemetry.io/otel/metric", "go.opentelemetry.io/otel/trace"},
	"./gocronhasp": {".", "github.com/go-co-op/gocron/v2"},

	// Locks of other libraries, each in a package that links that library alone.
	"./adapters/goosehasp":          {".", "./adapters/internal/held", "github.com/pressly/goose/v3"},
	"./adapters/certmagichasp":      {".", "./adapters/internal/held", "github.com/caddyserver/certmagic"},
	"./adapters/tusdhasp":           {".", "./driver", "github.com/tus/tusd/v2"}, // the driver: to check a name
	"./adapters/cronhasp":           {".", "github.com/robfig/cron/v3"},
	"./adapters/internal/held":      {"."},
	"./adapters/internal/processes": {"."}, // tests only

	"./metering": {"."}, // what promhasp and otelhasp measure, in the terms of neither

	// The programs link every store.
	"./cmd/hasp":                      {"./cmd/hasp/internal/cli", "./cmd/hasp/stores"},
	"./cmd/hasp-mcp":                  {".", "./filelock", "./httplock", "./internal/repository", "github.com/modelcontextprotocol/go-sdk"},
	"./cmd/hasp/stores":               {"./httplock", "./memlock", "./filelock", "./zklock", "./etcdlock", "./redislock", "./redislock/redlock", "./pglock", "./mysqllock", "./kubelock", "./s3lock"}, // hasp-torture, another module, links them too
	"./cmd/hasp/internal/cli":         {".", "./driver", "./fencing", "./fencing/filefence", "./cmd/hasp/internal/cli/group", "./internal/exit", "./cmd/hasp/internal/cli/hold", "./cmd/hasp/internal/cli/job", "./cmd/hasp/internal/cli/manual", "./cmd/hasp/internal/cli/output", "./cmd/hasp/internal/cli/secrets", "./cmd/hasp/internal/cli/settings", "./internal/signals", "./cmd/hasp/internal/cli/storeurl", "./cmd/hasp/internal/cli/view", "./cmd/hasp/internal/exporter", "./cmd/hasp/internal/queues", "./cmd/hasp/internal/records", "./cmd/hasp/internal/serve", "./cmd/hasp/internal/serve/access", "./cmd/hasp/internal/serve/audit", "./cmd/hasp/internal/serve/files", "github.com/spf13/cobra", "github.com/spf13/pflag"},
	"./cmd/hasp/internal/records":     {"."},                                  // the JSON of queues, for the verbs and the page
	"./cmd/hasp/internal/queues":      {".", "./driver", "golang.org/x/sync"}, // reads all queues, for ls, top and the page
	"./cmd/hasp/internal/exporter":    {".", "./driver", "./internal/httpapi"},
	"./cmd/hasp/internal/serve":       {".", "./driver", "./internal/httpapi", "./cmd/hasp/internal/serve/access", "./cmd/hasp/internal/serve/audit", "./cmd/hasp/internal/serve/page", "golang.org/x/time"},
	"./cmd/hasp/internal/serve/audit": {"."},
	// The page shows what the library's client sees, and an operator does there what hasp release does.
	"./cmd/hasp/internal/serve/page": {".", "./driver", "./internal/httpapi", "./cmd/hasp/internal/queues", "./cmd/hasp/internal/records", "./cmd/hasp/internal/serve/access"},
	// Who may do what: it knows nothing of locks but that they have names.
	"./cmd/hasp/internal/serve/access": {},
	"./cmd/hasp/internal/serve/files":  {"./cmd/hasp/internal/serve/access"},
	"./cmd/hasp/internal/cli/bound":    {"golang.org/x/sys"},
	// The rooms know a lock by what they watch of it, and not the command's flags.
	"./cmd/hasp/internal/cli/job":     {".", "./internal/exit", "./cmd/hasp/internal/cli/group", "./internal/signals", "./cmd/hasp/internal/cli/view"},
	"./cmd/hasp/internal/cli/hold":    {".", "./driver", "./cmd/hasp/internal/cli/bound", "./internal/exit", "./cmd/hasp/internal/cli/group", "./internal/signals", "./cmd/hasp/internal/cli/view", "golang.org/x/sys"},
	"./cmd/hasp/internal/cli/output":  {"./cmd/hasp/internal/cli/group", "golang.org/x/sys"},
	"./cmd/hasp/internal/cli/secrets": {"./driver"}, // splits a URL as the drivers do
	// They know no verb: a setting is a flag of package pflag, and cobra finds the nearest name.
	"./cmd/hasp/internal/cli/settings": {"./internal/exit", "./cmd/hasp/internal/cli/secrets", "./cmd/hasp/internal/cli/storeurl", "./cmd/hasp/internal/cli/view", "github.com/spf13/cobra", "github.com/spf13/pflag"},
	"./cmd/hasp/internal/cli/storeurl": {"./driver", "./internal/repository", "./internal/exit", "./cmd/hasp/internal/cli/secrets", "./cmd/hasp/internal/cli/view", "github.com/spf13/pflag"},
	"./cmd/hasp/internal/cli/manual":   {},
	"./cmd/hasp/internal/cli/view":     {"."},
	"./cmd/hasp/internal/cli/group":    {"./cmd/hasp/internal/cli/group/spawn", "golang.org/x/sys"},
	// A leaf: see its comment.
	"./cmd/hasp/internal/cli/group/spawn":  {},
	"./cmd/hasp/internal/cli/group/holder": {"./cmd/hasp/internal/cli/group", "./internal/signals"}, // what its tests kill

	// What the command and hasp-torture share.
	"./internal/exit":    {".", "./internal/signals"}, // a signal has an exit code
	"./internal/signals": {"golang.org/x/sys"},

	// Another command, in a module apart: it judges what clients believed.
	"./torture/hasp-torture":        {"./torture/internal/command", "./cmd/hasp/stores"},
	"./torture/internal/command":    {".", "./driver", "./internal/exit", "./internal/signals", "./torture/internal/torture", "./torture/internal/localstore", "github.com/spf13/pflag"},
	"./torture/internal/torture":    {".", "./driver", "./fencing", "./internal/history", "./internal/recordedhold", "./internal/faultnet"},
	"./torture/internal/localstore": {"./internal/serverprocess"},

	// Test support. Servers are spoken to by their own raw protocols here, so that a
	// driver's test does not trust the driver's client to say whether a server is up.
	"./internal/backends":         {"./internal/serverprocess"},
	"./internal/serverprocess":    {}, // and hasp-torture --local
	"./internal/backends/install": {"./internal/backends"},
	"./internal/modules":          {}, // runs go and git
	"./internal/deps":             {},
	"./internal/docs":             {},
	"./internal/faultnet":         {},
	"./internal/repository":       {},                   // where the store of a git repository is
	"./internal/fstype":           {"golang.org/x/sys"}, // which file systems are a network's, for filelock and filefence
	"./internal/rulecases":        {"./driver"},         // the table of cases that every driver's rule is held to
	"./internal/naivelock":        {},                   // a lock as people write it by hand, for controls
	"./internal/history":          {},                   // tests, and hasp-torture
	"./tests/clients/refresh":     {".", "./httplock"},  // a program that its tests run
	"./tests/internal/linear":     {"./internal/history", "github.com/anishathalye/porcupine"},
	"./tests/internal/haspbin":    {"./internal/serverprocess"}, // runs go
	"./tests/internal/haspserve":  {"./internal/testkit", "./tests/internal/haspbin"},
	"./tests/internal/browser":    {"./internal/backends", "github.com/chromedp/chromedp", "github.com/chromedp/cdproto"},
	"./internal/broken":           {"./driver", "./memlock", "./caslock"},   // drivers that are broken on purpose, for controls
	"./internal/testkit":          {".", "./driver", "./internal/faultnet"}, // what tests of several packages share
	"./internal/testkit/sqlkit":   {"./internal/backends"},                  // what the tests of pglock and mysqllock share
	"./internal/testtier":         {},                                       // imported by every package's tests, the root's too
	"./internal/recordedhold":     {".", "./internal/history"},              // its own, so that history knows no lock
}

// pkg is the part of go list's answer that is used.
type pkg struct {
	ImportPath string
	Standard   bool
	GoFiles    []string
	Module     *struct{ Path string }
	Imports    []string

	TestImports, XTestImports []string
}

func TestImportsAreListed(t *testing.T) {
	// Files differ by system, so imports do: the systems that make check builds for.
	for _, goos := range []string{"linux", "darwin", "windows"} {
		t.Run(goos, func(t *testing.T) {
			pkgs := list(t, goos)
			checked := 0
			for _, p := range pkgs {
				if !ours(p.ImportPath) || program(p.ImportPath) || len(p.GoFiles) == 0 { // tests alone
					continue
				}
				checked++
				for _, complaint := range complaints(p, pkgs) {
					t.Error(complaint)
				}
			}
			if root := pkgs[module]; root.ImportPath == "" || checked < 2 {
				t.Fatalf("go list named %d packages of %s: this test has checked nothing", checked, module)
			}
		})
	}
}

// complaints says what is wrong with the imports of p, a package of ours. pkgs are all
// packages by import path.
func complaints(p pkg, pkgs map[string]pkg) []string {
	allowed, listed := mayImport[short(p.ImportPath)]
	if !listed {
		return []string{short(p.ImportPath) + " has no line in mayImport (internal/deps/deps_test.go): list what it may import, and say why"}
	}
	var out []string
	for _, path := range p.Imports {
		imported := pkgs[path]
		if imported.Standard {
			continue
		}
		key := short(path)
		if imported.Module != nil && !ours(path) {
			key = imported.Module.Path
		}
		if !slices.Contains(allowed, key) {
			out = append(out, short(p.ImportPath)+" imports "+path+", but may import only the standard library and "+
				"["+strings.Join(allowed, " ")+"]: see mayImport in internal/deps/deps_test.go for the reason")
		}
	}
	return out
}

// TestComplaints shows that the check above can fail, on the imports it exists to refuse.
func TestComplaints(t *testing.T) {
	pkgs := map[string]pkg{
		"fmt":                      {ImportPath: "fmt", Standard: true},
		module + "/driver":         {ImportPath: module + "/driver", Module: &struct{ Path string }{module}},
		module + "/filelock":       {ImportPath: module + "/filelock", Module: &struct{ Path string }{module}},
		"github.com/redis/rueidis": {ImportPath: "github.com/redis/rueidis", Module: &struct{ Path string }{"github.com/redis/rueidis"}},
	}
	for _, c := range []struct {
		path, imports string
		want          int
	}{
		{module, "fmt", 0},
		{module, module + "/driver", 0},
		{module, module + "/filelock", 1},
		{module, "github.com/redis/rueidis", 1},
		{module + "/driver", "github.com/redis/rueidis", 1},
		{module + "/redislock", "github.com/redis/rueidis", 0},
		{module + "/zklock", "github.com/redis/rueidis", 1},
		{module + "/unheardof", "fmt", 1},
	} {
		got := complaints(pkg{ImportPath: c.path, Imports: []string{c.imports}}, pkgs)
		if len(got) != c.want {
			t.Errorf("%s importing %s: %d complaints %q, want %d", c.path, c.imports, len(got), got, c.want)
		}
	}
}

// TestRequirementsHaveReasons covers what TestImportsAreListed does not see: modules
// that only tests import.
func TestRequirementsHaveReasons(t *testing.T) {
	files, err := filepath.Glob("../../*/go.mod")
	if err != nil || len(files) < 8 {
		t.Fatalf("found %q, %v", files, err)
	}
	for _, file := range append(files, "../../go.mod", "../../cmd/hasp/go.mod", "../../drivertest/programs/go.mod", "../../redislock/goredis/go.mod",
		"../../redislock/internal/simulation/go.mod", "../../redislock/internal/tests/go.mod") {
		var mod struct {
			Module  struct{ Path string }
			Require []struct {
				Path     string
				Indirect bool
			}
		}
		if err := json.Unmarshal(run(t, "", "go", "mod", "edit", "-json", file), &mod); err != nil {
			t.Fatal(err)
		}
		if program(mod.Module.Path) {
			continue
		}
		for _, r := range mod.Require {
			if !r.Indirect && !ours(r.Path) && reasons[r.Path] == "" {
				t.Errorf("%s requires %s: say in reasons (internal/deps/deps_test.go) what it is for, or do without it", mod.Module.Path, r.Path)
			}
		}
	}
	for path, allowed := range mayImport {
		for _, a := range allowed {
			if !strings.HasPrefix(a, ".") && reasons[a] == "" {
				t.Errorf("%s may import %s, which has no reason in reasons", path, a)
			}
		}
	}
}

// list returns our packages and everything they import, as built for goos.
func list(t *testing.T, goos string) map[string]pkg {
	out := run(t, goos, "go", "list", "-e", "-deps", "-json=ImportPath,Standard,Module,GoFiles,Imports,TestImports,XTestImports", module+"/...")
	pkgs := make(map[string]pkg)
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs[p.ImportPath] = p
	}
}

func run(t *testing.T, goos, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(cmd.Environ(), "GOOS="+goos, "CGO_ENABLED=0") // an empty GOOS is this system's
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, stderr.Bytes())
	}
	return out
}

// ours reports whether a package or module is of this repository.
func ours(path string) bool { return path == module || strings.HasPrefix(path, module+"/") }

// program reports whether it is a program that no other package imports, and that may import what
// it likes: measurements, foreign clients, examples, the tool that makes a release.
func program(path string) bool {
	dir, _, _ := strings.Cut(strings.TrimPrefix(path, module+"/"), "/")
	return slices.Contains([]string{"dev", "examples"}, dir)
}

// short writes an import path of ours as mayImport does.
func short(path string) string {
	if path == module {
		return "."
	}
	if rest, ok := strings.CutPrefix(path, module+"/"); ok {
		return "./" + rest
	}
	return path
}
