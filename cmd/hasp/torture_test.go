//go:build unix

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testtier"
)

// torture runs hasp torture, and returns its verdict.
func torture(t *testing.T, store string, want int, args ...string) (v struct {
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
}) {
	t.Helper()
	code, out, words := hasp(t, store, append([]string{"torture", "--json", "--ttl", "1s"}, args...)...)
	if err := json.Unmarshal([]byte(out), &v); err != nil || code != want {
		t.Fatalf("exit code %d, want %d: %v\n%s%s", code, want, err, out, words)
	}
	return v
}

// On Redis every kind of fault is made and every promise holds; a run whose faults no naive lock fails
// under is inconclusive, and says so.
func TestTortureRedis(t *testing.T) {
	server := backends.SharedRedis(t)
	v := torture(t, server.URL(), 0, "--for", "15s", "--seed", "2")
	if v.Verdict != "held" || v.Acquisitions == 0 || v.Control.Violations == 0 || v.Lost != 0 {
		t.Errorf("%+v", v)
	}
	for _, kind := range []string{"pause", "hold", "ackloss", "cut", "kill"} {
		if v.Faults[kind].Done == 0 {
			t.Errorf("no fault of the kind %s: %+v", kind, v.Faults)
		}
	}
	if v := torture(t, server.URL(), 77, "--for", "3s", "--faults", "kill"); v.Verdict != "inconclusive" {
		t.Errorf("only killed: %+v", v)
	}
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
		v := torture(t, server.URL(), want, "--for", "20s", "--processes", "4", "--seed", "3", "--adapter", "sh "+path)
		if v.Acquisitions == 0 || v.Control.Violations == 0 {
			t.Errorf("exit code %d: %+v", want, v)
		}
	}
}
