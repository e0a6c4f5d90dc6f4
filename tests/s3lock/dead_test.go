//go:build unix

package s3lock_test

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
	"github.com/hasplock/hasp/tests/internal/haspbin"
)

// The lock of a holder that was killed is had by hasp run -n at the default TTL, from the store and
// through hasp serve: a try goes on where the attempt before has ended. Until then who and ls
// answer at once, with what release --force takes. A holder with a longer TTL is not waited for,
// and no success for --skip-ok.
func TestDeadHolderByTheCommand(t *testing.T) {
	testtier.Long(t)
	s := serve(t, nil)
	c := command{haspbin.Build(t), s.url("dead"), t.TempDir()}
	for name, ttl := range map[string]string{"a": "10s", "served": "10s", "forced": "10s", "long": "15s"} {
		c.does(t, -1, "", "run", "--ttl", ttl, name, "--", "sh", "-c", "exec >/dev/null 2>&1; kill -9 $PPID; sleep 60")
	}
	time.Sleep(16 * time.Second) // all look over

	idle := c.idle(t)
	began := time.Now()
	c.does(t, 0, "looks over since ", "who", "--held", "forced")
	c.does(t, 0, "looks over since ", "ls")
	text, err := c.prepare(t, "who", "--json", "forced").Output()
	var shown struct{ Holders []struct{ ID string } }
	if jerr := json.Unmarshal(text, &shown); err != nil || jerr != nil || len(shown.Holders) != 1 {
		t.Fatalf("%v, %v: %s", err, jerr, text)
	}
	c.does(t, 0, "", "release", "--force", "--holder", shown.Holders[0].ID, "--reason", "dead", "forced")
	c.does(t, 0, "", "run", "-n", "forced", "--", "true")
	c.does(t, 75, "looks over since .*--wait takes it", "run", "-n", "long", "--", "true")
	c.does(t, 75, "looks over since .*--wait takes it", "run", "--skip-ok", "long", "--", "true")
	c.does(t, 75, "looks over since .*a longer --wait takes it", "run", "--skip-ok", "--wait", "1s", "long", "--", "true")
	if took := time.Since(began); took > 9*time.Second+16*idle { // two for each of them
		t.Errorf("who, ls and a try that does not wait took %s", took)
	}

	through := command{c.program, "hasp+http://" + c.serves(t), c.dir}
	served := make(chan struct{})
	go func() { // by a process that has seen nothing yet
		defer close(served)
		text, err := through.prepare(t, "run", "-n", "served", "--", "echo", "it has it").CombinedOutput()
		if err != nil || !strings.Contains(string(text), "waiting until it is certain that the holder is gone: ") || !strings.HasSuffix(string(text), "it has it\n") {
			t.Errorf("through hasp serve: %v, %s", err, text)
		}
	}()
	began = time.Now()
	c.does(t, 0, "waiting until it is certain that the holder is gone: ", "run", "-n", "a", "--", "true")
	t.Logf("had after %s", time.Since(began))
	<-served
	c.does(t, 0, "", "run", "--wait", "40s", "long", "--", "true")
}

// --wait 3s ends soon after, also on a bucket that stops to answer: within 4.5 s on a machine that
// has nothing else to do. What is no answer is no busy lock, and no success for --skip-ok.
func TestCommandOnAHangingBucket(t *testing.T) {
	for name, from := range map[string]int64{"from the start": 0, "when it was opened": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var locks atomic.Int64
			s := serve(t, func(h http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if from == 0 || strings.HasSuffix(r.URL.Path, "/job") && locks.Add(1) >= from {
						_, _ = io.Copy(io.Discard, r.Body) // else the end of the client is not seen
						<-r.Context().Done()
						return
					}
					h.ServeHTTP(w, r)
				})
			})
			c := command{haspbin.Build(t), s.url("hangs/"), t.TempDir()}
			idle := c.idle(t)
			began := time.Now()
			c.does(t, 69, "the store did not answer in time", "run", "--skip-ok", "--wait", "3s", "job", "--", "true")
			if took := time.Since(began); took > 8*time.Second+4*idle {
				t.Errorf("it took %s", took)
			} else {
				t.Logf("it took %s", took)
			}
		})
	}
}

// idle returns how long a process takes on this machine now.
func (c command) idle(t *testing.T) time.Duration {
	t.Helper()
	began := time.Now()
	c.does(t, 0, "", "--version")
	return time.Since(began)
}

// serves starts hasp serve on the store, and returns its address.
func (c command) serves(t *testing.T) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr = l.Addr().String()
	l.Close()
	end := c.starts(t, "serve", "--listen", addr, "--drain", "1s")
	t.Cleanup(func() { end(syscall.SIGTERM) })
	testkit.Eventually(t, "the server", func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return addr
}
