package testkit

import (
	"strings"
	"testing"
	"time"

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

// Identity is a store's, of a length that is worth sending about. It asks again while the store does
// not say yes or no: a cluster on a busy machine may be without a leader for a while.
func Identity(t testing.TB, b driver.Backend) string {
	t.Helper()
	ctx := Context(t)
	id, err := b.(driver.Identifier).Identity(ctx)
	for err != nil && !Definite(err) && ctx.Err() == nil {
		time.Sleep(every)
		id, err = b.(driver.Identifier).Identity(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	if id == "" || len(id) > 200 {
		t.Errorf("%s has an identity of %d bytes: %q", b, len(id), id)
	}
	return id
}
