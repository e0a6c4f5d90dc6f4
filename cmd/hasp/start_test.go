//go:build unix

package main

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Scripts start hasp often, mostly for one store and one verb. So none of our packages does much at
// its start that only some store or verb needs, such as to read all scripts; a few regular
// expressions are no reason for a function each. Bytes are counted and not time: they depend on no
// machine, and each page that is touched costs about a microsecond.
func TestStartsWithoutWork(t *testing.T) {
	t.Setenv("GODEBUG", "inittrace=1")
	code, _, trace := hasp(t, "", "version")
	if code != 0 {
		t.Fatalf("%d, %s", code, trace)
	}
	const most = 128 << 10 // redislock's expressions have 94 KB
	ours := 0
	for _, m := range regexp.MustCompile(`(?m)^init (github\.com/hasplock/hasp\S*) .* clock, (\d+) bytes`).FindAllStringSubmatch(trace, -1) {
		if strings.Contains(m[1], "/internal/backends") || strings.Contains(m[1], "/internal/faultnet") { // of these tests
			continue
		}
		ours++
		if n, _ := strconv.Atoi(m[2]); n > most {
			t.Errorf("%s allocates %d bytes at the start of each hasp, more than %d", m[1], n, most)
		}
	}
	if ours < 10 {
		t.Errorf("only %d packages of ours in\n%s", ours, trace)
	}
}
