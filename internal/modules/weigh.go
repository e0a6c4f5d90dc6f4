package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

// testsOnly are modules that only tests and measurements link. None may come into the sight of a
// program that uses hasp: Go would choose their versions together with the program's own.
var testsOnly = []string{
	"github.com/anishathalye/porcupine", "github.com/bsm/redislock", "github.com/go-redsync/redsync/v4",
	"github.com/rogpeppe/go-internal", "github.com/yuin/gopher-lua", "modernc.org/sqlite", "pgregory.net/rapid",
}

// weigh makes, for each module, a program that imports all of its packages, and looks at its go.sum.
func weigh(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "a program that imports\thas lines in go.sum\tand links these modules")
	var wrong []error
	for _, dir := range imported {
		sums, linked, err := user(dir)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%s\t%d\t%s\n", strings.TrimPrefix(importPath(dir), "github.com/hasplock/"), strings.Count(sums, "\n"), strings.Join(linked, " "))
		wrong = append(wrong, intruders(dir, sums))
	}
	return errors.Join(append(wrong, w.Flush())...)
}

// intruders returns an error if a go.sum file has modules that only tests link.
func intruders(dir, sums string) error {
	var wrong []error
	for _, m := range testsOnly {
		needed := dir == "drivertest/programs" || dir == "adapters" && m == "modernc.org/sqlite" // goose requires it
		if strings.Contains("\n"+sums, "\n"+m+" ") && !needed {
			wrong = append(wrong, fmt.Errorf("a program that imports %s has %s in go.sum, which only tests link", importPath(dir), m))
		}
	}
	return errors.Join(wrong...)
}

// user makes the program. It returns its go.sum, and the modules that it links beside ours.
func user(dir string) (sums string, linked []string, err error) {
	at, err := os.MkdirTemp("", "hasp-modules-")
	if err != nil {
		return "", nil, err
	}
	defer os.RemoveAll(at)
	mod, err := requires(dir)
	if err != nil {
		return "", nil, err
	}
	packages, err := run(dir, "go", "list", "-f", `{{if ne .Name "main"}}{{.ImportPath}}{{end}}`, "./...")
	if err != nil {
		return "", nil, err
	}
	source := "package main\n\nimport (\n"
	for p := range strings.FieldsSeq(packages) {
		if !strings.Contains(p, "/internal/") {
			source += fmt.Sprintf("\t_ %q\n", p)
		}
	}
	here, err := filepath.Abs(".")
	if err != nil {
		return "", nil, err
	}
	text := "module user\n\ngo 1.26.0\n"
	for _, d := range append(mod.ours(), dir) {
		text += fmt.Sprintf("\nrequire %s v0.0.0\nreplace %[1]s => %s\n", importPath(d), filepath.Join(here, filepath.FromSlash(d)))
	}
	err = errors.Join(os.WriteFile(filepath.Join(at, "main.go"), []byte(source+")\n\nfunc main() {}\n"), 0o600),
		os.WriteFile(filepath.Join(at, "go.mod"), []byte(text), 0o600))
	if err != nil {
		return "", nil, err
	}
	if _, err := run(at, "go", "mod", "tidy"); err != nil {
		return "", nil, err
	}
	all, err := run(at, "go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", ".")
	if err != nil {
		return "", nil, err
	}
	for m := range strings.FieldsSeq(all) {
		if m != "user" && !strings.HasPrefix(m, root) {
			linked = append(linked, m)
		}
	}
	slices.Sort(linked)
	goSum, err := os.ReadFile(filepath.Join(at, "go.sum"))
	if errors.Is(err, os.ErrNotExist) {
		err = nil // it needs none
	}
	return string(goSum), slices.Compact(linked), err
}
