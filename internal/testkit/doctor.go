package testkit

import (
	"strings"
	"testing"

	"github.com/hasplock/hasp/driver"
)

// Findings are the findings of a backend about its store, by subject; of several with one subject,
// the gravest. Every fault must have a remedy.
func Findings(t testing.TB, b driver.Backend) map[string]driver.Finding {
	t.Helper()
	all, err := b.(driver.Diagnoser).Diagnose(Context(t))
	if err != nil {
		t.Fatal(err)
	}
	rank := map[driver.Level]int{driver.Info: 1, driver.Warn: 2, driver.Bad: 3}
	gravest := map[string]driver.Finding{}
	for _, f := range all {
		if rank[f.Level] > rank[gravest[f.Subject].Level] {
			gravest[f.Subject] = f
		}
		if f.Level != driver.Info && f.Cure == "" {
			t.Errorf("%s: a fault without a cure: %s", f.Subject, f.Text)
		}
	}
	return gravest
}

// WantFinding demands that a subject's finding has this level and says this.
func WantFinding(t testing.TB, found map[string]driver.Finding, subject string, level driver.Level, text string) {
	t.Helper()
	if f := found[subject]; f.Level != level || !strings.Contains(f.Text, text) {
		t.Errorf("%s: %s %q; want %s with %q", subject, f.Level, f.Text, level, text)
	}
}
