//go:build !race

// With the race detector these take twenty times as long, and nothing here is concurrent: make check runs them.

package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// avoided are the phrases that plain English does without: a client or a process is "it" or "the
// client that", and a sentence names its subject. Whole words, in upper or lower case.
var avoided = []string{
	"as it were", "for want of", "he", "him", "his", "in vain", "is what", "nobody", "not to be had",
	"of its own", "of their own", "reckon", "reckoned", "reckons", "whatever", "whoever",
}

// exceptions are lines in which a phrase is right: the file, a part of the line, and the reason.
var exceptions = []struct{ file, line, reason string }{}

func TestPlainWords(t *testing.T) {
	used := make([]bool, len(exceptions))
	files := 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := filepath.ToSlash(strings.TrimPrefix(path, filepath.FromSlash("../../")))
		switch {
		case d.IsDir() && name == ".git":
			return filepath.SkipDir
		case d.IsDir(), filepath.Ext(path) != ".go" && filepath.Ext(path) != ".md":
			return nil
		case name == "internal/docs/words_test.go": // it has the list
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files++
		for _, f := range findPhrases(string(text)) {
			i := slices.IndexFunc(exceptions, func(e struct{ file, line, reason string }) bool {
				return e.file == name && strings.Contains(f.text, e.line)
			})
			if i >= 0 {
				used[i] = true
				continue
			}
			t.Errorf("%s:%d: %q in plain English, please: %s", name, f.line, f.phrase, strings.TrimSpace(f.text))
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if files < 500 {
		t.Errorf("only %d files were read", files)
	}
	for i, e := range exceptions {
		if !used[i] {
			t.Errorf("the exception for %q in %s (%s) is not needed", e.line, e.file, e.reason)
		}
	}
}

// wrapped are the folders whose comments wrap at 100 columns, "" being the root. A package that is
// done is added here; once all are, all folders count.
var wrapped = []string{
	"", "adapters/certmagichasp", "adapters/cronhasp", "adapters/goosehasp", "adapters/tusdhasp", "cmd/hasp/internal/cli/hold", "cmd/hasp/internal/cli/job", "cmd/hasp/internal/cli/secrets", "cmd/hasp/internal/cli/settings", "cmd/hasp/internal/cli/storeurl", "driver", "driver/tlsparams", "drivertest", "filelock", "gocronhasp", "hasptest", "internal/exit", "internal/memstore", "internal/signals", "memlock", "otelhasp", "promhasp",
}

// A comment on lines without code is no wider than 100 columns, a tab being four.
func TestWordsWrapAt100Columns(t *testing.T) {
	files := 0
	for _, folder := range wrapped {
		paths, err := filepath.Glob(filepath.Join("../..", folder, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			files++
			for n, line := range strings.Split(string(text), "\n") {
				comment := strings.HasPrefix(strings.TrimSpace(line), "//") && !strings.HasPrefix(line, "//go:")
				if columns := utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    ")); comment && columns > 100 {
					t.Errorf("%s:%d: a comment of %d columns", path, n+1, columns)
				}
			}
		}
	}
	if files < 150 {
		t.Errorf("only %d files were read", files)
	}
}

// found is a phrase, with its line.
type found struct {
	line         int
	phrase, text string
}

var (
	phrases = regexp.MustCompile(`(?i)\b(` + strings.ReplaceAll(strings.Join(avoided, "|"), " ", `\s+`) + `)\b`)
	marker  = regexp.MustCompile(`^\s*(//|>)?\s*`)
)

// findPhrases looks at each line together with the next one, without the comment marker: a phrase
// may be broken by the end of a line. It belongs to the line in which it begins.
func findPhrases(text string) (all []found) {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		first := marker.ReplaceAllString(line, "")
		both := first
		if i+1 < len(lines) {
			both += " " + marker.ReplaceAllString(lines[i+1], "")
		}
		for _, m := range phrases.FindAllStringIndex(both, -1) {
			if m[0] < len(first) {
				all = append(all, found{i + 1, strings.Join(strings.Fields(both[m[0]:m[1]]), " "), line})
			}
		}
	}
	return all
}

// The search finds phrases of any case, across a line break, and as whole words only.
func TestFindPhrases(t *testing.T) {
	var have []string
	for _, f := range findPhrases("// Whoever waits\n\t// is\n\t// what it is; the hero reckoned\nWHATEVER: this hiss, \"whatever_1\"") {
		have = append(have, f.phrase)
	}
	if want := []string{"Whoever", "is what", "reckoned", "WHATEVER"}; !slices.Equal(have, want) {
		t.Errorf("found %q, want %q", have, want)
	}
}
