//go:build unix

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testtier"
)

// verdict has the fields of the printed one that tests look at.
type verdict struct {
	Acquisitions int
	Verdict      string
	Broken       string
	Hits         int
	Faults       map[string]struct{ Done, Hits int }
	Overlaps     struct {
		Forgot int `json:"server_forgot"`
		Broken int
	}
	Lost    uint64 `json:"lost_updates_fenced"`
	Control struct{ Violations int }

	Contradictions []string `json:"violations"`
}

// inconclusive is the exit code of a run without a caught control.
const inconclusive = 77

// torture runs hasp torture, and returns its verdict. A busy machine comes to fewer faults: a run that is inconclusive
// begins again, for longer.
func torture(t *testing.T, store string, want int, lasts time.Duration, args ...string) verdict {
	t.Helper()
	for try := 1; ; try++ {
		code, v := tortureOnce(t, store, lasts, args...)
		if code == want {
			return v
		}
		if code != inconclusive || try == 3 {
			t.Fatalf("exit code %d, want %d: %+v", code, want, v)
		}
		lasts *= 3
	}
}

func tortureOnce(t *testing.T, store string, lasts time.Duration, args ...string) (code int, v verdict) {
	t.Helper()
	code, out, words := hasp(t, store, append([]string{"torture", "--json", "--ttl", "1s", "--for", lasts.String()}, args...)...)
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		t.Fatalf("exit code %d: %v\n%s%s", code, err, out, words)
	}
	return code, v
}

// On Redis every kind of fault is made and every promise holds; a run whose faults no naive lock fails
// under is inconclusive, and says so.
func TestTortureRedis(t *testing.T) {
	server := backends.SharedRedis(t)
	missing := []string{"pause", "hold", "ackloss", "cut", "kill"}
	for lasts := 15 * time.Second; len(missing) > 0 && lasts < 3*time.Minute; lasts *= 3 {
		v := torture(t, server.URL(), 0, lasts, "--seed", "2")
		if v.Verdict != "held" || v.Acquisitions == 0 || v.Control.Violations == 0 || v.Lost != 0 {
			t.Errorf("%+v", v)
		}
		missing = slices.DeleteFunc(missing, func(kind string) bool { return v.Faults[kind].Done > 0 })
	}
	if len(missing) > 0 {
		t.Errorf("no fault of the kinds %q", missing)
	}
	for range 5 {
		code, v := tortureOnce(t, server.URL(), 3*time.Second, "--faults", "kill")
		if code == 0 && v.Control.Violations > 0 {
			continue // a worker stood still for a TTL without a fault
		}
		if code != inconclusive || v.Verdict != "inconclusive" {
			t.Errorf("only killed: exit code %d, %+v", code, v)
		}
		return
	}
	t.Error("in each of five runs the control was violated, though processes were only killed")
}

func TestTortureNeedsAStoreAndConsent(t *testing.T) {
	code, _, words := hasp(t, "redis://:s3cret@127.0.0.1:1", "torture", "--for", "1s")
	if code != 69 || strings.Contains(words, "s3cret") {
		t.Errorf("an unreachable store: exit code %d, %s", code, words)
	}
	code, _, words = hasp(t, "redis://:s3cret@192.0.2.1", "torture")
	if code != 64 || !strings.Contains(words, "redis://192.0.2.1 is not on this machine") || !strings.Contains(words, "--yes") {
		t.Errorf("a distant store: exit code %d, %s", code, words)
	}
}

// The adapter of docs/TORTURE.md excludes on Redis under every fault; one whose check always says held is caught.
func TestTortureAdapterOfThePage(t *testing.T) {
	testtier.Long(t)
	if err := backends.InstallProgram(os.Stderr, "redis-cli", "redis-tools"); err != nil {
		t.Skip(err)
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "TORTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "```sh\n#!/bin/sh\n")
	text, _, ok := strings.Cut(text, "```")
	ignorant := strings.Replace(text, "*) echo lost", "*) echo held", 1) // the first is that of check
	if !ok || ignorant == text {
		t.Fatal("the page has no script with a check")
	}
	server := backends.SharedRedis(t)
	path := filepath.Join(t.TempDir(), "lock.sh")
	for script, want := range map[string]int{text: 0, ignorant: 1} {
		if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		v := torture(t, server.URL(), want, 20*time.Second, "--processes", "4", "--seed", "3", "--adapter", "sh "+path)
		if v.Acquisitions == 0 || v.Control.Violations == 0 {
			t.Errorf("exit code %d: %+v", want, v)
		}
	}
}
