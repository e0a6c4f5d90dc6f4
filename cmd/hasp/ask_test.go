//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hasplock/hasp/internal/backends"
)

// A request reaches the people who read hasp run's standard error, without --on-ask.
func TestRequestsAreSaid(t *testing.T) {
	for _, store := range []string{
		backends.SharedRedis(t).URL(), backends.SharedPostgres(t).URL(), "etcd://" + backends.SharedEtcd(t).Addr,
	} {
		said := filepath.Join(t.TempDir(), "said")
		c := exec.CommandContext(t.Context(), "sh", "-uc", `hasp run --pass-credentials --ttl 6s asked -- sh -c '
			hasp release --reason "hotfix, please" asked & until grep "asks for" "$0"; do sleep 0.1; done; kill $!' "$0" 2>"$0"`, said)
		c.Env = append(os.Environ(), "HASP_STORE="+store, "GORACE=atexit_sleep_ms=0")
		out, err := c.CombinedOutput()
		text, _ := os.ReadFile(said)
		if err != nil || !strings.Contains(string(out), `asks for "asked": hotfix, please; the command runs on`) ||
			!strings.Contains(string(text), "the holder listens to requests") {
			t.Errorf("%s: %v, %s\n%s", store, err, out, text)
		}
	}
}

// A store without a queue is not said to wait for its holder, and what remains is.
func TestNoPlaceForRequests(t *testing.T) {
	store := with(t, backends.SharedRedis(t).URL(), "strategy=setnx")
	code, out, errOut := hasp(t, store, "run", "--pass-credentials", "deaf", "--", "sh", "-c", `hasp release --reason hotfix deaf; test $? = 78`)
	if code != 0 || strings.Contains(errOut, "this waits") || !strings.Contains(errOut, "to take the lock away: hasp release --force") || !strings.Contains(errOut, "not supported") {
		t.Errorf("%d, %s%s", code, out, errOut)
	}
}
