package kubelock_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/tests/internal/haspbin"
)

// command is the built hasp with the store in its environment.
type command struct {
	t     testing.TB
	file  string
	store string
}

func newCommand(t testing.TB, c cluster, namespace string) command {
	t.Helper()
	return command{t, haspbin.Build(t), c.url(t, namespace)}
}

func (x command) command(args ...string) (*exec.Cmd, *bytes.Buffer) {
	out := &bytes.Buffer{}
	c := exec.Command(x.file, args...)
	c.Env = append(clean(), "HASP_STORE="+x.store, "HASP_TTL="+ttl.String())
	c.Stdout, c.Stderr = out, out
	return c, out
}

// clean is the environment without the tests' variables, which hasp would refuse as mistyped.
func clean() []string {
	return slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "HASP_") })
}

// force removes the holder of a name.
func (x command) force(name string) {
	x.t.Helper()
	var shown struct{ Holders []struct{ ID string } }
	text := x.run(0, "who", "--json", name)
	if err := json.Unmarshal([]byte(text), &shown); err != nil || len(shown.Holders) != 1 {
		x.t.Fatalf("%v: %s", err, text)
	}
	x.run(0, "release", "--force", "--holder", shown.Holders[0].ID, "--reason", "maintenance", name)
}

// run demands an exit code, and returns what was printed.
func (x command) run(code int, args ...string) string {
	x.t.Helper()
	c, out := x.command(args...)
	if err := c.Run(); c.ProcessState == nil || c.ProcessState.ExitCode() != code {
		x.t.Errorf("hasp %s: %v, want exit code %d\n%s", strings.Join(args, " "), err, code, out)
	}
	return out.String()
}

// start runs it in the background.
func (x command) start(args ...string) *exec.Cmd {
	x.t.Helper()
	c, out := x.command(args...)
	if err := c.Start(); err != nil {
		x.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		c.Wait()
		close(ended)
	}()
	x.t.Cleanup(func() {
		c.Process.Signal(syscall.SIGTERM)
		testkit.Await(x.t, "the end of hasp "+args[0], ended)
		if x.t.Failed() {
			x.t.Logf("hasp %s: %s", strings.Join(args, " "), out)
		}
	})
	return c
}

// says demands that a text has these words.
func says(t testing.TB, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("no %q in:\n%s", w, text)
		}
	}
}

// The command on a real API server: run, try, who, ls, wait, release, elect, doctor, fence's token.
func TestCommand(t *testing.T) {
	c := shared(t)
	t.Parallel()
	const ns = "command"
	x := newCommand(t, c, ns)
	says(t, x.run(7, "run", "Orders/42", "--", "sh", "-c", `echo "token $HASP_TOKEN"; exit 7`), "token ")
	hold := x.start("run", "--note", "the test", "held", "--", "sleep", "1000")
	// Not by ls, which says of an empty store that nothing is held.
	testkit.Eventually(t, "the holder", func() bool { return strings.Contains(x.run(0, "who", "held"), "the test") })
	says(t, x.run(0, "ls"), "held")
	x.run(75, "run", "-n", "held", "--", "true")
	x.run(75, "run", "-w", "1s", "held", "--", "true")
	// The holder is evicted, its command killed, and the next has the lock.
	x.force("held")
	x.run(0, "run", "-w", "30s", "held", "--", "true")
	testkit.Eventually(t, "the end of the evicted", func() bool { return hold.Process.Signal(syscall.Signal(0)) != nil })

	leader := x.start("elect", "--value", "10.0.0.1:80", "scheduler", "--", "sleep", "1000")
	testkit.Eventually(t, "the leader", func() bool {
		cmd, out := x.command("elect", "--observe", "--once", "scheduler")
		return cmd.Run() == nil && strings.Contains(out.String(), "10.0.0.1:80")
	})
	x.start("elect", "--value", "10.0.0.2:80", "scheduler", "--", "sleep", "1000")
	leader.Process.Signal(syscall.SIGTERM)
	testkit.Eventually(t, "the next leader", func() bool {
		cmd, out := x.command("elect", "--observe", "--once", "scheduler")
		return cmd.Run() == nil && strings.Contains(out.String(), "10.0.0.2:80")
	})

	// A Lease of client-go's: shown, waited for, and freed by force.
	c.create(t, ns, "controller", object{"holderIdentity": "pod-7", "leaseDurationSeconds": 3600, "renewTime": stamp(time.Now())})
	says(t, x.run(0, "who", "controller"), "pod-7")
	x.run(75, "run", "-n", "controller", "--", "true")
	x.force("controller")
	x.run(0, "run", "-n", "controller", "--", "true")

	// One whose controller was killed: it looks over, and all of these answer at once. A try does not
	// wait for its two minutes, which are longer than the TTL of this test; one with a TTL of 15 s has
	// one of 15 s when it has seen the Lease unchanged for so long.
	killed := object{"holderIdentity": "pod-8", "leaseDurationSeconds": 120, "renewTime": stamp(time.Now().Add(-time.Hour))}
	c.create(t, ns, "killed", killed)
	killed["leaseDurationSeconds"] = 15
	c.create(t, ns, "awaited", killed)
	began := time.Now()
	says(t, x.run(0, "who", "--held", "killed"), "pod-8", "looks over since ")
	says(t, x.run(0, "ls"), "killed", "looks over since ")
	says(t, x.run(75, "run", "-n", "killed", "--", "true"), "looks over since ", "--wait takes it")
	x.force("killed")
	x.run(0, "run", "-n", "killed", "--", "true")
	if took := time.Since(began); took > time.Minute {
		t.Errorf("of a killed controller's Lease: %s", took)
	}
	says(t, x.run(0, "run", "-n", "--ttl", "15s", "awaited", "--", "true"), "waiting until it is certain that the holder is gone: ")

	says(t, x.run(0, "doctor"), "v1.37.2", "rights", "exempt")
	rightless := c.as(t, c.serviceAccount(t, "rightless"), ns)
	says(t, rightless.run(78, "doctor"), "no right to get, list, watch, create, update, delete leases", "not tried: ")
	other := x
	other.store = strings.Replace(x.store, "kube://command", "kube://missing", 1)
	says(t, other.run(78, "run", "a", "--", "true"), "kubectl create namespace missing")
	if status, _ := c.try(t, http.MethodGet, leases(ns)+"/held", nil); status != http.StatusOK {
		t.Errorf("the Lease of a name: %d", status)
	}
}

// hasp-torture: clients that are stopped, cut off, killed, and robbed of answers. Its control is
// caught, or the run says that it proves nothing.
func TestTorture(t *testing.T) {
	c := shared(t)
	t.Parallel()
	torture(t, c, "1m")
}

func torture(t *testing.T, c cluster, lasts string) {
	t.Helper()
	u, err := url.Parse(c.url(t, "torture"))
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("server", "https://"+c.Addr)
	q.Set("servername", "localhost")
	u.RawQuery = q.Encode()
	run := exec.CommandContext(t.Context(), haspbin.BuildTorture(t), "--for", lasts, "--ttl", ttl.String(), u.String())
	run.Env = clean()
	out, err := run.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
}

// --wait 3s ends soon after, also on an API server that is stopped, or whose etcd is: within 4.5 s on
// a machine that has nothing else to do. What is no answer is no busy lock, and no success for
// --skip-ok.
func TestCommandOnAHangingServer(t *testing.T) {
	asked(t)
	for name, pause := range map[string]func(cluster) error{
		"the API server": func(c cluster) error { return c.Pause() },
		"its etcd":       func(c cluster) error { return c.Etcd.Pause() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := cluster{backends.StartKube(t)}
			x := newCommand(t, c, "hangs")
			x.run(0, "run", "job", "--", "true")
			if err := pause(c); err != nil {
				t.Fatal(err)
			}
			for _, args := range [][]string{{"run", "--skip-ok", "--wait", "3s", "job", "--", "true"}, {"wait", "--wait", "3s", "job"}, {"hold", "-w", "3s", "job"}} {
				began := time.Now()
				x.run(0, "--version")
				idle := time.Since(began) // what a process costs on this machine now
				began = time.Now()
				text := x.run(69, args...)
				if took := time.Since(began); took > 8*time.Second+4*idle {
					t.Errorf("%v took %s: %s", args, took, text)
				} else {
					t.Logf("%v took %s: %s", args, took, text)
				}
			}
		})
	}
}
