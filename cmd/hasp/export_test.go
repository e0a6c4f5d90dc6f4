//go:build unix

package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/hasplock/hasp/internal/backends"
)

// hold --export on stores whose locks expire: the text has no password, the lock is given back on
// request and by the end of the shell, and an eviction ends the shell.
func TestHoldOverSteps(t *testing.T) {
	redis := backends.StartRedis(t, backends.RedisOptions{})
	redisDo(t, redis, "ACL", "SETUSER", "ana", "on", ">s3cret", "~*", "&*", "+@all")
	for _, store := range []string{
		strings.Replace(redis.URL(), "redis://", "redis://ana:s3cret@", 1),
		"etcd://" + backends.SharedEtcd(t).Addr, backends.SharedPostgres(t).URL(),
	} {
		t.Run(store[:4], func(t *testing.T) {
			sh := func(script string) (out string, ended error) {
				c := exec.CommandContext(t.Context(), "sh", "-uc", script)
				c.Env = append(os.Environ(), "HASP_STORE="+store, "GORACE=atexit_sleep_ms=0")
				b, err := c.CombinedOutput()
				if strings.Contains(string(b), "s3cret") {
					t.Errorf("a password is told: %s", b)
				}
				return string(b), err
			}
			out, err := sh(`text=$(hasp hold --export steps) || exit; echo "$text"; eval "$text"
				hasp try steps -- true; echo busy $?
				hasp who --mine && hasp release --mine && hasp try steps -- echo free $HASP_TOKEN`)
			if err != nil || !strings.Contains(out, "busy 75") || !strings.Contains(out, "\nfree ") {
				t.Errorf("%v: %s", err, out)
			}
			// The second run waits until the end of the first shell has freed the lock.
			_, err = sh(`eval "$(hasp hold --export steps)"; kill -9 $$`)
			if out, freed := sh(`hasp run -w 60s steps -- true`); err == nil || freed != nil {
				t.Errorf("%v, %v: %s", err, freed, out)
			}
			out, err = sh(`eval "$(hasp hold --export steps)"; trap 'hasp release --mine; echo lost $?; exit 3' TERM
				hasp release --force steps --holder $HASP_HOLDER --reason 'out of my way'; while :; do sleep 0.1; done`)
			if err == nil || !strings.Contains(out, "\nlost 76") || !strings.Contains(out, "was sent TERM") || !strings.Contains(out, "took it away: out of my way") {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}
