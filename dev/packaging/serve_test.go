package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// The files for containers are YAML, and this hasp knows every flag in them. What Docker and
// Kubernetes make of the rest is not tested here.
func TestServeFiles(t *testing.T) {
	hasp := filepath.Join(t.TempDir(), "hasp")
	do(t, "go", "build", "-C", "../../cmd/hasp", "-tags", "grpcnotrace", "-o", hasp, ".")
	known := func(args []string) error {
		out, err := exec.Command(hasp, append(args, "--help")...).CombinedOutput() // flags are read before help is given
		if err != nil {
			return errors.New(string(out))
		}
		return nil
	}
	if known([]string{"serve", "--no-such-flag"}) == nil {
		t.Fatal("a flag that does not exist passes: this check is none")
	}
	found := 0
	check := func(file string, args []string) {
		if found++; !strings.Contains(strings.Join(args, " "), "--tokens") {
			t.Errorf("%s: without tokens the server refuses to listen to others: %q", file, args)
		}
		if err := known(args); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
	for _, file := range []string{"serve/compose.yaml", "serve/kubernetes.yaml"} {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for d := yaml.NewDecoder(f); ; {
			var v any
			if err := d.Decode(&v); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			serveArgs(v, func(args []string) { check(file, args) })
		}
	}
	if found != 3 {
		t.Errorf("%d commands were found, want two of compose and one of Kubernetes", found)
	}
	unit, err := os.ReadFile("systemd/hasp-serve.service")
	if err != nil {
		t.Fatal(err)
	}
	lines := regexp.MustCompile(`(?m)^(?:#   )?ExecStart=/usr/bin/hasp (.*)$`).FindAllStringSubmatch(string(unit), -1)
	if len(lines) != 2 {
		t.Errorf("%d commands in the unit, want two", len(lines))
	}
	for _, l := range lines {
		if err := known(strings.Fields(l[1])); err != nil {
			t.Errorf("the unit: %v", err)
		}
	}
}

// serveArgs finds the lists that begin with "serve".
func serveArgs(v any, found func([]string)) {
	switch v := v.(type) {
	case map[string]any:
		for _, x := range v {
			serveArgs(x, found)
		}
	case []any:
		var args []string
		for _, x := range v {
			if text, ok := x.(string); ok {
				args = append(args, text)
			}
			serveArgs(x, found)
		}
		if len(args) > 0 && args[0] == "serve" {
			found(args)
		}
	}
}

// Prometheus' own tool reads the rules, and each fires on what it is about.
func TestAlerts(t *testing.T) {
	need(t, "promtool")
	rules, err := filepath.Abs("kubernetes/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for series, alert := range map[string]string{
		`hasp_queue_held_seconds{name="n", store="s"}`:          "LockHeldForLong",
		`hasp_queue_oldest_waiter_seconds{name="n", store="s"}`: "LockNotGranted",
		`hasp_quarantine_seconds{store="s"}`:                    "LockStoreInQuarantine",
		`hasp_lost_total{store="s", reason="expired"}`:          "LockLost",
	} {
		file := filepath.Join(t.TempDir(), "test.yaml")
		text := fmt.Sprintf("rule_files: [%q]\nevaluation_interval: 1m\ntests:\n- interval: 1m\n  input_series:\n  - {series: '%s', values: '0+4000x20'}\n"+
			"  alert_rule_test:\n  - {eval_time: 10m, alertname: %s, exp_alerts: []}\n", rules, series, alert)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		// None is expected, so that the answer shows which came.
		if out, err := exec.Command("promtool", "test", "rules", file).CombinedOutput(); err == nil || !strings.Contains(string(out), "alertname=\""+alert+"\"") {
			t.Errorf("%s does not raise %s: %v\n%s", series, alert, err, out)
		}
	}
}
