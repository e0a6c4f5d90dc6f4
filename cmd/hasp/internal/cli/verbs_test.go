//go:build unix

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/settings"
	"github.com/hasplock/hasp/internal/exit"
	"github.com/spf13/cobra"
)

// useOf is how each verb is used, without flags. A verb that is not here fails TestEveryVerb.
var useOf = map[string][]string{
	"run": {"a", "--", "true"}, "try": {"a", "--", "true"}, "elect": {"a", "--", "true"},
	"hold": {"a"}, "wait": {"a"}, "who": {"a"}, "release": {"a", "--force", "--reason=x", "--holder=x"}, "ls": {}, "top": {}, "deadlocks": {},
	"doctor": {}, "migrate": {}, "exporter": {"a"}, "serve": {},
	"fence file": {"--name=a", "--token=1", "out"}, "serve token": {"--tokens=tokens", "a"},
	"config": {}, "version": {}, "help": {},
	"completion bash": {}, "completion zsh": {}, "completion fish": {}, "completion powershell": {},
}

// leaves are the verbs that do something, by their words.
func leaves(c *cobra.Command, words []string, found map[string]*cobra.Command) {
	for _, sub := range c.Commands() {
		path := append(words[:len(words):len(words)], sub.Name())
		if !sub.Hidden && sub.Runnable() && (!sub.HasSubCommands() || sub.Name() == "serve") {
			found[strings.Join(path, " ")] = sub
		}
		leaves(sub, path, found)
	}
}

// tryVerb runs a verb in this process. The store cannot be opened: connect's error is the given
// one.
func tryVerb(t *testing.T, args []string, refusal error) (code, opened int, out, words string) {
	t.Helper()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	var stdout, stderr strings.Builder
	a := &app{
		streams: streams{
			stdin: null, stdout: &stdout, stderr: &stderr,
			openStatus: func(int) (io.WriteCloser, error) { return nil, errors.New("closed") },
		},
		settings: settings.Settings{Environ: func() []string { return nil }, Getenv: func(string) string { return "" }},
		connect: func(context.Context, string, ...hasp.Option) (*hasp.Client, error) {
			opened++
			return nil, refusal
		},
	}
	code = a.run(args)
	return code, opened, stdout.String(), stderr.String()
}

// TestEveryVerb holds each verb to the table of exit codes, where the verb is used wrongly and
// where the store cannot be had. The verbs are those of the command itself: a new one is in it or
// fails it.
func TestEveryVerb(t *testing.T) {
	verbs := map[string]*cobra.Command{}
	leaves((&app{settings: settings.Settings{Getenv: func(string) string { return "" }}}).root(), nil, verbs)
	if len(verbs) < 20 {
		t.Fatalf("found only %d verbs", len(verbs))
	}
	for verb, c := range verbs {
		use, known := useOf[verb]
		if !known {
			t.Errorf("hasp %s: how it is used is missing in useOf", verb)
			continue
		}
		t.Run(verb, func(t *testing.T) {
			t.Chdir(t.TempDir())
			words := strings.Fields(verb)
			with := func(more ...string) []string { return append(append(words[:len(words):len(words)], more...), use...) }
			expect := func(want int, what string, args []string, refusal error) (opened int) {
				t.Helper()
				code, opened, out, said := tryVerb(t, args, refusal)
				if code != want {
					t.Errorf("%s: hasp %s: exit code %d, want %d: %s", what, strings.Join(args, " "), code, want, said)
				}
				switch {
				case want == exit.CodeOK && (out == "" || said != ""):
					t.Errorf("%s: stdout %q, stderr %q", what, out, said)
				case want != exit.CodeOK && (!strings.HasPrefix(said, "hasp: ") || out != "" && verb != "hold"): // hold ends a script
					t.Errorf("%s: the error is no line on standard error: stdout %q, stderr %q", what, out, said)
				}
				return opened
			}
			expect(exit.CodeOK, "help", append(words[:len(words):len(words)], "--help"), nil)
			if n := expect(exit.CodeUsage, "an unknown flag", with("--no-such-flag"), nil); n > 0 {
				t.Error("the store was opened for an unknown flag")
			}
			if takesMany[verb] == "" {
				many := append(append(words[:len(words):len(words)], "x"), strings.Fields(strings.Repeat("y ", 9))...)
				expect(exit.CodeUsage, "too many arguments", many, nil)
			}
			if c.Flags().Lookup("store") == nil {
				return
			}
			expect(exit.CodeConfig, "no store", with("--store", ""), nil)
			if verb == "config" {
				return // it does not open the store
			}
			const store = "file:///nowhere"
			for _, r := range []struct {
				err  error
				want int
			}{
				{fmt.Errorf("%w: no such setting", hasp.ErrInvalid), exit.CodeConfig},
				{fmt.Errorf("%w: no permission", hasp.ErrRefused), exit.CodeConfig},
				{errors.New("connection refused"), exit.CodeUnreachable},
				{context.DeadlineExceeded, exit.CodeUnreachable},
			} {
				if r.want == exit.CodeUnreachable && triesForEver[verb] {
					continue
				}
				if opened := expect(r.want, fmt.Sprintf("the store says %q", r.err), with("--store", store), r.err); opened == 0 {
					t.Errorf("the store was not opened: this has shown nothing")
				}
			}
		})
	}
}

// takesMany are the verbs that take ten arguments, and why.
var takesMany = map[string]string{
	"exporter": "names",
	"help":     "the words of a verb",
	"run":      "without the two dashes what follows NAME is the command",
	"try":      "the same",
	"elect":    "the same",
}

// triesForEver are the verbs that go on trying to reach their store until a signal comes. Scripts
// have them do so: see elect.txtar, exporter.txtar and serve.txtar.
var triesForEver = map[string]bool{"elect": true, "exporter": true, "serve": true}

// What is written to a full disk was not written: the verbs for scripts say so and fail.
func TestFullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("there is no /dev/full on this system")
	}
	defer full.Close()
	dir := filepath.Join(t.TempDir(), "locks")
	for _, args := range [][]string{
		{"who", "--json", "a"}, {"doctor"}, {"doctor", "--json"}, {"config"}, {"version"}, {"completion", "bash"}, {"help"}, {"run", "--help"}, {},
	} {
		var said strings.Builder
		a := &app{
			streams: streams{stdin: os.Stdin, stdout: full, stderr: &said}, connect: hasp.Open,
			settings: settings.Settings{
				Environ: func() []string { return nil },
				Getenv:  func(key string) string { return map[string]string{"HASP_STORE": "file://" + dir}[key] },
			},
		}
		if code := a.run(args); code == exit.CodeOK {
			t.Errorf("hasp %s: exit code 0 although nothing could be written; it said %q", strings.Join(args, " "), said.String())
		}
	}
}
