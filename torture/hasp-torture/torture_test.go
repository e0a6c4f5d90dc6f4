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
	"github.com/hasplock/hasp/internal/testkit"
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

// torture runs hasp-torture, and returns its verdict. A busy machine comes to fewer faults: a run
// that is inconclusive begins again, for longer.
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
	code, out, words := testkit.Program(t, "hasp-torture", store, append([]string{"--json", "--ttl", "1s", "--for", lasts.String()}, args...)...)
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		t.Fatalf("exit code %d: %v\n%s%s", code, err, out, words)
	}
	return code, v
}

// On Redis every kind of fault is made and every promise holds; a run whose faults no naive lock
// fails under is inconclusive, and says so.
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
	code, _, words := testkit.Program(t, "hasp-torture", "redis://:s3cret@127.0.0.1:1", "--for", "1s")
	if code != 69 || strings.Contains(words, "s3cret") {
		t.Errorf("an unreachable store: exit code %d, %s", code, words)
	}
	code, _, words = testkit.Program(t, "hasp-torture", "redis://:s3cret@192.0.2.1")
	if code != 64 || !strings.Contains(words, "redis://192.0.2.1 is not on this machine") || !strings.Contains(words, "--yes") {
		t.Errorf("a distant store: exit code %d, %s", code, words)
	}
}

// The adapter of docs/TORTURE.md excludes on Redis under every fault. It is caught if its check
// always says held, and with a check that asks, if it takes the lock from another, always or now
// and then, or releases another's.
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
	without := func(old, new string) string {
		broken := strings.Replace(text, old, new, 1)
		if !ok || broken == text {
			t.Fatalf("the script of the page has no %q", old)
		}
		return broken
	}
	server := backends.SharedRedis(t)
	v := torture(t, server.URL(), 0, 20*time.Second, adapting(t, text)...)
	if v.Acquisitions == 0 || v.Control.Violations == 0 {
		t.Errorf("%+v", v)
	}
	for what, script := range map[string]string{
		"always says held":      without("*) echo lost", "*) echo held"), // the first is that of check
		"SET without NX":        without(`"$me" NX PX`, `"$me" PX`),
		"DEL without compare":   without(`"$delete" 1 "$lock"`, `"return redis.call('DEL', KEYS[1])" 1 "$lock"`),
		"takes it now and then": without("do sleep 0.05", `do case $(date +%N) in ?????[0-2]*) redis SET "$lock" "$me" PX "$HASP_TTL_MS" >&2; break ;; esac; sleep 0.05`),
	} {
		t.Run(what, func(t *testing.T) {
			for lasts := 20 * time.Second; ; lasts *= 3 { // on a busy machine most holders are disturbed
				code, v := tortureOnce(t, server.URL(), lasts, adapting(t, script)...)
				if code == 1 && v.Overlaps.Broken > 0 {
					return
				}
				if code != 0 && code != inconclusive || lasts > time.Minute {
					t.Fatalf("exit code %d: %+v", code, v)
				}
			}
		})
	}
}

// adapting are the arguments for an adapter that is this script.
func adapting(t *testing.T, script string) []string {
	path := filepath.Join(t.TempDir(), "lock.sh")
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return []string{"--processes", "4", "--seed", "3", "--adapter", "sh " + path}
}
