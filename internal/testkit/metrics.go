package testkit

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
)

// Panel is one of the dashboard's.
type Panel struct {
	Title   string
	Targets []struct{ Expr string }
}

// Dashboard reads the dashboard in a file.
func Dashboard(t testing.TB, file string) []Panel {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var d struct{ Panels []Panel }
	if err := json.Unmarshal(data, &d); err != nil || len(d.Panels) == 0 {
		t.Fatalf("%s: %d panels, %v", file, len(d.Panels), err)
	}
	return d.Panels
}

// Shown is an expression of the dashboard, for all stores: what Grafana would ask.
func Shown(expr string) string {
	return strings.NewReplacer("$store", ".*", "$__rate_interval", "5m").Replace(expr)
}

// Metrics are the names of those in an expression.
func Metrics(expr string) (names []string) {
	for _, name := range regexp.MustCompile(`hasp_\w+`).FindAllString(expr, -1) {
		names = append(names, strings.TrimSuffix(name, "_bucket"))
	}
	return names
}

// Metric is a row of the table in docs/METRICS.md.
type Metric struct{ Name, Kind, Label, From string }

// DocumentedMetrics reads the table in a file.
func DocumentedMetrics(t testing.TB, file string) (all []Metric) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (\\w+) \\|(.*?)\\| (.*?) \\|").FindAllStringSubmatch(string(text), -1) {
		all = append(all, Metric{Name: m[1], Kind: m[2], Label: strings.Trim(m[3], "` "), From: m[4]})
	}
	if len(all) == 0 {
		t.Fatalf("%s has no table of metrics", file)
	}
	return all
}
