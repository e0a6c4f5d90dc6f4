package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The page's table is that of the file: both are written by one run.
func TestPeersTable(t *testing.T) {
	text, err := os.ReadFile("peers.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []*judged
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "TORTURE-RUNS.md"))
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(copied, page, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := putTable(copied, peersMark, peersTable(all)); err != nil {
		t.Fatal(err)
	}
	if again, _ := os.ReadFile(copied); string(again) != string(page) || len(all) != len(peers) {
		t.Errorf("docs/TORTURE-RUNS.md has another table than peers.json, which has %d of %d peers:\n%s", len(all), len(peers), peersTable(all))
	}
	for _, p := range all {
		if strings.HasPrefix(p.What, "hasp") && p.Verdict.Result != "held" {
			t.Errorf("hasp on %s: %s", p.Store, p.Verdict.Result)
		}
	}
	if err := os.WriteFile(copied, []byte("no marks"), 0o600); err != nil {
		t.Fatal(err)
	}
	if putTable(copied, peersMark, "") == nil {
		t.Error("a page without a place for the table is written")
	}
}
