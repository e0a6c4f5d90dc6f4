package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A campaign that is broken off goes on with the slices that are missing, and with those of other
// settings; what is there is not run again. What could not be run is said, and not counted.
func TestCampaignGoesOn(t *testing.T) {
	dir, count := t.TempDir(), filepath.Join(t.TempDir(), "runs")
	hasp := filepath.Join(t.TempDir(), "hasp")
	script := `#!/bin/sh
echo "$*" >>'` + count + `'
case $* in *"--seed 2 "*etcd*|*etcd*"--seed 2 "*) echo "hasp: no server" >&2; exit 78 ;; esac
echo '{"acquisitions": 10, "hits": 3, "seconds": 60, "verdict": "held", "fencing": true, "overlaps": {"server_forgot": 1},
 "faults": {"cut": {"hits": 1}, "serverpause": {"hits": 2}}, "control": {"violations": 1}}'
`
	if err := os.WriteFile(hasp, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	all := []slice{{ordeals[0], 1}, {ordeals[0], 2}, {ordeals[3], 1}, {ordeals[3], 2}}
	other := slice{ordeals[0], 1}
	other.ttl = time.Hour
	text, _ := json.Marshal(done{Command: strings.Join(other.arguments(), " ")})
	for _, s := range all[:1] {
		if err := os.WriteFile(s.path(dir), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := all[1].run(t.Context(), hasp, dir); err != nil {
		t.Fatal(err)
	}
	c := &campaign{hasp: hasp, dir: dir, parallel: 2}
	err := c.run(t.Context(), all)
	if err == nil || !strings.Contains(err.Error(), "etcd, slice 2") || !strings.Contains(err.Error(), "no server") {
		t.Errorf("a slice that failed: %v", err)
	}
	runs, _ := os.ReadFile(count)
	if n := strings.Count(string(runs), "\n"); n != 4 {
		t.Errorf("%d runs, want 4:\n%s", n, runs)
	}
	sums, err := add(dir, all)
	if err != nil || len(sums) != 2 || sums[0].Slices != 2 || sums[0].Acquisitions != 20 || sums[0].AtServer != 4 || sums[0].Overlaps.Forgot != 2 ||
		sums[1].Slices != 1 || sums[1].Hits != 3 {
		t.Errorf("%v: %+v", err, sums)
	}
	if table := sumsTable(sums); !strings.Contains(table, "| redis | 2 | 20 | 6 | 4 |") || !strings.Contains(table, "| 0 | 2 of 2 |") {
		t.Errorf("the table:\n%s", table)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (&campaign{hasp: hasp, dir: dir, parallel: 2}).run(ended, all); err == nil || !strings.Contains(err.Error(), "broken off") {
		t.Errorf("broken off: %v", err)
	}
}

// The page's table is that of the file, and no promise was broken.
func TestCampaignTable(t *testing.T) {
	text, err := os.ReadFile("campaign.json")
	if err != nil {
		t.Fatal(err)
	}
	var sums []*sum
	if err := json.Unmarshal(text, &sums); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "TORTURE-RUNS.md"))
	if err != nil {
		t.Fatal(err)
	}
	if len(sums) != len(ordeals) || !strings.Contains(string(page), begins(campaignMark)+sumsTable(sums)+ends(campaignMark)) {
		t.Errorf("docs/TORTURE-RUNS.md has another table than campaign.json, which has %d of %d stores:\n%s", len(sums), len(ordeals), sumsTable(sums))
	}
	for _, s := range sums {
		if len(s.Broken) > 0 {
			t.Errorf("%s: %s", s.Store, s.Broken)
		}
	}
}
