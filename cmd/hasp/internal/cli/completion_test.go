package cli

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/settings"
)

// A store that does not answer, and a driver that does not end with its context, do not hold up the
// shell.
func TestCompletionIsBounded(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		end := make(chan struct{})
		a := &app{
			streams:  streams{stdout: &out, stderr: new(bytes.Buffer)},
			settings: settings.Settings{Getenv: func(string) string { return "" }, Environ: func() []string { return nil }},
			connect: func(context.Context, string, ...hasp.Option) (*hasp.Client, error) {
				<-end
				return nil, hasp.ErrClosed
			},
		}
		began := time.Now()
		if code := a.run([]string{"__complete", "run", "--store", "file://" + dir, ""}); code != 0 {
			t.Errorf("exit code %d", code)
		}
		if took := time.Since(began); took > 300*time.Millisecond || took < completionBound {
			t.Errorf("it took %s", took)
		}
		if out.String() != ":4\n" {
			t.Errorf("%q", out.String())
		}
		close(end)
	})
}
