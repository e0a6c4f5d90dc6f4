package cli

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
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
			settings: settings{getenv: func(string) string { return "" }, environ: func() []string { return nil }},
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

// What is only looked at makes no directory and no tables.
func TestLookOnly(t *testing.T) {
	dir := t.TempDir()
	for _, x := range []struct {
		url, want string
	}{
		{"file://" + dir, "file://" + dir},
		{"file://" + dir + "/not/there", ""},
		{"postgres://u:secret@h/db?prefix=p_", "postgres://u:secret@h/db?migrate=false&prefix=p_"},
		{"mysql://h/db?migrate=true", "mysql://h/db?migrate=false"},
		{"postgres://h/db?a=%zz", ""},
		{"redis://h", "redis://h"},
		{"nothing", ""},
	} {
		var s storeURL
		_ = s.Set(x.url)
		got, ok := lookOnly(&s)
		if ok != (x.want != "") || ok && got != x.want {
			t.Errorf("%s: %q, %t", x.url, got, ok)
		}
	}
}
