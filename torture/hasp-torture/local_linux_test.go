package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/serverprocess"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// installed makes sure of the programs that --local starts, as the tests of the stores do.
var installed = map[string]func(testing.TB){
	"redis":     func(tb testing.TB) { backends.SharedRedis(tb) },
	"redlock":   func(tb testing.TB) { backends.SharedRedis(tb) },
	"etcd":      func(tb testing.TB) { backends.Etcdctl(tb); backends.StartEtcd(tb, backends.EtcdOptions{Old: true}) },
	"zookeeper": func(tb testing.TB) { backends.SharedZooKeeper(tb) },
	"postgres":  func(tb testing.TB) { backends.SharedPostgres(tb) },
	"mariadb":   func(tb testing.TB) { backends.SharedMariaDB(tb) },
}

// Every server can be stopped, restarted and made to forget; the promises hold, and what was
// started is gone.
func TestTortureLocal(t *testing.T) { tortureLocal(t, "redis") }

func TestTortureLocalOthers(t *testing.T) {
	testtier.Long(t)
	for kind := range installed {
		if kind != "redis" {
			t.Run(kind, func(t *testing.T) { tortureLocal(t, kind) })
		}
	}
}

func tortureLocal(t *testing.T, kind string) {
	installed[kind](t)
	tmp := t.TempDir()
	passable(t, tmp)
	t.Setenv("TMPDIR", tmp)
	ttl := "1s"
	if kind == "etcd" {
		ttl = "2s" // its floor
	}
	missing := []string{"serverpause", "serverrestart", "serverforget"}
	for lasts := 20 * time.Second; len(missing) > 0 && lasts < 10*time.Minute; lasts *= 3 { // a busy machine comes to fewer faults
		v := torture(t, "", 0, lasts, "--local", kind, "--ttl", ttl, "--seed", "3", "--processes", "4",
			"--faults", "hold,serverpause,serverrestart,serverforget")
		missing = slices.DeleteFunc(missing, func(fault string) bool { return v.Faults[fault].Hits > 0 })
		if v.Verdict != "held" || v.Acquisitions == 0 {
			t.Errorf("%+v", v)
		}
		if forgot := v.Overlaps.Forgot; (kind == "redis" || kind == "redlock") && forgot > 0 {
			t.Errorf("%d overlaps since the server forgot: the quarantine is to prevent that", forgot)
		}
		nothingIn(t, tmp)
	}
	if len(missing) > 0 {
		t.Errorf("no %q came upon a holder", missing)
	}
}

// A Redis that grants at once after it has forgotten has two holders: one that is cut off, and so
// does not hear of it, and the next. The judge sees it, and says that this is no broken promise.
func TestTortureLocalForgets(t *testing.T) {
	testtier.Long(t)
	installed["redis"](t)
	for seed := range 5 {
		v := torture(t, "", 0, time.Minute, "--local", "redis?quarantine=off", "--faults", "hold,serverforget", "--ttl", "3s",
			"--processes", "8", "--names", "8", "--interval", "500ms", "--seed", fmt.Sprint(seed))
		if v.Overlaps.Broken > 0 {
			t.Errorf("%+v", v)
		}
		if v.Overlaps.Forgot > 0 {
			return
		}
	}
	t.Error("no overlap in five runs")
}

// Ctrl-C ends the server and removes its data; so does the death of hasp.
func TestTortureLocalIsBrokenOff(t *testing.T) {
	installed["redis"](t)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		t.Run(sig.String(), func(t *testing.T) {
			tmp := t.TempDir()
			passable(t, tmp)
			c := exec.CommandContext(t.Context(), "hasp-torture", "--local", "redis", "--for", "1h", "--ttl", "1s")
			c.Env = append(os.Environ(), "TMPDIR="+tmp, "HASP_STORE=")
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the run to begin", func() bool {
				records, _ := filepath.Glob(filepath.Join(tmp, "hasp-torture-*", "*.history"))
				return len(records) > 2
			})
			servers := workingIn(tmp)
			if len(servers) == 0 {
				t.Error("no server works below TMPDIR")
			}
			_ = c.Process.Signal(sig)
			_ = c.Wait() // the code says it
			if code := c.ProcessState.ExitCode(); sig == syscall.SIGINT && code != 130 {
				t.Errorf("exit code %d, want 130", code)
			}
			if sig == syscall.SIGINT {
				nothingIn(t, tmp)
			}
			eventually(t, "the servers to end", func() bool {
				return !slices.ContainsFunc(servers, func(pid int) bool { return !serverprocess.Gone(pid) })
			})
			eventually(t, "the servers' data to be removed", func() bool {
				left, _ := filepath.Glob(filepath.Join(tmp, "hasp-servers-*"))
				return len(left) == 0
			})
		})
	}
}

// A record that finds no room is told in these words. Nothing is left, and a record with gaps
// acquits no lock.
func TestTortureFullDisk(t *testing.T) {
	testtier.Long(t)
	small, store := t.TempDir(), "file://"+t.TempDir()
	defer testkit.MountSmall(t, small)()
	fill := filepath.Join(small, "fill")
	if err := os.WriteFile(fill, make([]byte, 3500<<10), 0o600); err != nil { // of 4 MB
		t.Fatal(err)
	}
	t.Run("record", func(t *testing.T) {
		t.Setenv("TMPDIR", small)
		code, out, words := testkit.Program(t, "hasp-torture", store, "--ttl", "1s", "--for", "10m")
		if code != 70 || out != "" || !strings.Contains(words, "no space left on device") {
			t.Errorf("exit code %d: %s%s", code, out, words)
		}
		if files, _ := filepath.Glob(filepath.Join(small, "*")); len(files) != 1 {
			t.Errorf("left: %q", files)
		}
	})
}

// passable lets the accounts of databases through: their servers' directories are below.
func passable(t *testing.T, dir string) {
	t.Helper()
	for ; dir != os.TempDir() && len(dir) > 1; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func nothingIn(t *testing.T, dir string) {
	t.Helper()
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if pids := workingIn(dir); len(pids) > 0 {
		t.Errorf("processes %d work below %s", pids, dir)
	}
}

// workingIn are the processes whose working directory is below dir.
func workingIn(dir string) (pids []int) {
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range links {
		if where, err := os.Readlink(link); err == nil && strings.HasPrefix(where, dir+"/") {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(link))) // the pattern has digits only
			pids = append(pids, pid)
		}
	}
	return pids
}

func eventually(t *testing.T, what string, yes func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !yes(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a minute was not enough for ", what)
		}
	}
}
