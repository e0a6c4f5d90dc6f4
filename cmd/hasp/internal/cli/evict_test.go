//go:build unix

package cli

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/settings"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/exit"
	"github.com/hasplock/hasp/memlock"
)

// unrecorded is a store that evicts, and keeps no record of it.
type unrecorded struct {
	driver.Backend
	driver.Evicter
}

func (unrecorded) LastEviction(context.Context, string) (string, error) {
	return "", driver.ErrUnsupported
}

// The verb who shows the reason of release --force, after the lock has passed on and when it is
// free; on a store that keeps no record, who does not mention it.
func TestEvictionIsShown(t *testing.T) {
	for url, kept := range map[string]bool{"mem://": true, "mem://?unrecorded": false, "file://" + t.TempDir(): true} {
		store := memlock.New()
		connect := func(ctx context.Context, url string, opts ...hasp.Option) (*hasp.Client, error) {
			switch b := store.Backend(); url {
			case "mem://":
				return hasp.New(b, opts...)
			case "mem://?unrecorded":
				return hasp.New(unrecorded{b, b.(driver.Evicter)}, opts...)
			}
			return hasp.Open(ctx, url, opts...)
		}
		run := func(args ...string) string {
			t.Helper()
			var out, errs strings.Builder
			a := &app{
				streams: streams{stdin: os.Stdin, stdout: &out, stderr: &errs}, connect: connect,
				settings: settings.Settings{Getenv: func(string) string { return "" }, Environ: func() []string { return nil }},
			}
			if code := a.run(append(args, "--store", url)); code != exit.CodeOK {
				t.Fatalf("%q: exit code %d, %s", args, code, errs.String())
			}
			return errs.String()
		}
		c, err := connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		l, err := c.Mutex("a").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		run("release", "--force", "a", "--holder", l.ID(), "--reason", "web-3 is dead")
		for _, again := range []bool{true, false} {
			said := run("who", "a")
			shown := strings.Contains(said, "last eviction: "+l.ID()+" by ") && strings.Contains(said, ": web-3 is dead\n")
			if shown != kept {
				t.Errorf("%s: who says %q", url, said)
			}
			if again {
				if _, err := c.Mutex("a").Lock(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}
