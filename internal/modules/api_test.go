package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A name that is exported, removed or changed is seen, and so is a field of JSON; what is not
// exported is not.
func TestAPI(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile("a.go", []byte("package a\n\n"+text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	look := func() string {
		t.Helper()
		seen, err := face(".", exported)
		if err != nil {
			t.Fatal(err)
		}
		records, err := face(".", tagged)
		if err != nil {
			t.Fatal(err)
		}
		return seen + records
	}
	const first = "type A struct {\n\tB int\n\tc int\n}\n\ntype wire struct {\n\tN int `json:\"n\"`\n}\n\nfunc (a *A) D() int { return 1 }\n\nfunc (w wire) E() {}\n"
	write(first)
	before := look()
	for _, want := range []string{"type A struct", "func (a *A) D() int\n", `json:"n"`} {
		if !strings.Contains(before, want) {
			t.Errorf("without %q:\n%s", want, before)
		}
	}
	if strings.Contains(before, "E()") || strings.Contains(before, "return") {
		t.Errorf("more than is exported:\n%s", before)
	}
	for _, c := range []struct {
		from, to string
		seen     bool
	}{
		{"D() int { return 1 }", "D() int { return 2 }", false},
		{"c int", "c string", false},
		{"D() int", "D() uint", true},
		{"B int", "C int", true},
		{`"n"`, `"m"`, true},
	} {
		write(strings.ReplaceAll(first, c.from, c.to))
		if got := difference(before, look()); (got != "") != c.seen {
			t.Errorf("%s becomes %s: %q", c.from, c.to, got)
		}
	}
	if err := os.Mkdir("internal", 0o755); err != nil {
		t.Fatal(err)
	}
	write(first)
	if err := os.WriteFile(filepath.Join("internal", "b.go"), []byte("package b\n\nfunc B() {}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := difference(before, look()); got != "" {
		t.Errorf("an internal package is seen: %s", got)
	}
}
