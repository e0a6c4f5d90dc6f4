//go:build unix

package cli

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/manual"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/settings"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

var updateFace = flag.Bool("update", false, "write api/command.txt and docs/COMMAND.md")

// The verbs and flags are those of api/command.txt: a change is meant, and scripts may feel it. The
// commands' JSON is in api/records.txt (make api).
func TestFace(t *testing.T) {
	const file = "../../../../api/command.txt"
	a := &app{settings: settings.Settings{Getenv: func(string) string { return "" }}}
	root := a.root()
	for _, v := range verbs() {
		if c, _, err := root.Find([]string{v.name}); err != nil || c == root {
			root.AddCommand(v.make(a))
		}
	}
	found := map[string]*cobra.Command{}
	leaves(root, nil, found)
	var b strings.Builder
	for _, words := range slices.Sorted(maps.Keys(found)) {
		fmt.Fprintf(&b, "hasp %s\n", words)
		found[words].Flags().VisitAll(func(f *pflag.Flag) {
			if f.Hidden {
				return
			}
			fmt.Fprintf(&b, "    --%s %s", f.Name, f.Value.Type())
			if f.Shorthand != "" {
				fmt.Fprintf(&b, ", -%s", f.Shorthand)
			}
			fmt.Fprintln(&b)
		})
	}
	if *updateFace {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before := strings.Split(string(kept), "\n")
	for i, line := range strings.Split(b.String(), "\n") {
		if i >= len(before) || before[i] != line {
			t.Fatalf("line %d is %q now; if that is meant: make api UPDATE=1, and a line in CHANGELOG.md", i+1, line)
		}
	}
	if len(before) != strings.Count(b.String(), "\n")+1 {
		t.Errorf("there are verbs or flags less: %d lines, and %d in the file", strings.Count(b.String(), "\n"), len(before)-1)
	}
}

// docs/COMMAND.md has every verb, flag, variable and exit code as the command prints its help.
func TestCommandPage(t *testing.T) {
	const file = "../../../../docs/COMMAND.md"
	verbs := map[string]*cobra.Command{}
	leaves((&app{settings: settings.Settings{Getenv: func(string) string { return "" }}}).root(), nil, verbs)
	page := "# The command\n\nWhat `hasp --help`, the help of each verb and `hasp help TOPIC` print. Made from the command: see `make api`.\n"
	add := func(title string, args ...string) {
		code, _, out, words := tryVerb(t, args, nil)
		if code != 0 || out == "" {
			t.Fatalf("%s: exit code %d, %s", title, code, words)
		}
		page += "\n## " + title + "\n\n```text\n" + out + "```\n"
	}
	add("hasp", "--help")
	for _, verb := range slices.Sorted(maps.Keys(verbs)) {
		add("hasp "+verb, append(strings.Fields(verb), "--help")...)
	}
	for _, topic := range manual.Topics {
		add("hasp help "+topic.Name, "help", topic.Name)
	}
	if *updateFace {
		if err := os.WriteFile(file, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if kept, err := os.ReadFile(file); err != nil || string(kept) != page {
		t.Errorf("docs/COMMAND.md is not the help of now, %v; make it: make api UPDATE=1", err)
	}
}
