package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What go test -json writes of a package in which one test passes, one is skipped, one fails, and
// the race detector speaks while another runs, which passes.
const stream = `{"Action":"start","Package":"github.com/hasplock/hasp/a"}
{"Action":"run","Package":"github.com/hasplock/hasp/a","Test":"TestGood"}
{"Action":"output","Package":"github.com/hasplock/hasp/a","Test":"TestGood","Output":"=== RUN   TestGood\n"}
{"Action":"output","Package":"github.com/hasplock/hasp/a","Test":"TestGood","Output":"    a_test.go:1: noise\n"}
{"Action":"output","Package":"github.com/hasplock/hasp/a","Test":"TestGood","Output":"==================\n"}
{"Action":"output","Package":"github.com/hasplock/hasp/a","Test":"TestGood","Output":"WARNING: DATA RACE\n"}
{"Action":"output","Package":"github.com/hasplock/hasp/a","Test":"TestGood","Output":"Write at 0x1\n"}
{"Action":"output","Package":"github.com/hasplock/hasp/a","Test":"TestGood","Output":"==================\n"}
{"Action":"pass","Package":"github.com/hasplock/hasp/a","Test":"TestGood","Elapsed":0.1}
{"Action":"output","Package":"github.com/hasplock/hasp/a","Test":"TestLong","Output":"    a_test.go:9: long: runs in make test-all\n"}
{"Action":"skip","Package":"github.com/hasplock/hasp/a","Test":"TestLong","Elapsed":0}
{"Action":"output","Package":"github.com/hasplock/hasp/a","Test":"TestBad","Output":"    a_test.go:12: two hold\n"}
{"Action":"fail","Package":"github.com/hasplock/hasp/a","Test":"TestBad","Elapsed":0}
{"Action":"output","Package":"github.com/hasplock/hasp/a","Output":"FAIL\n"}
{"Action":"fail","Package":"github.com/hasplock/hasp/a","Elapsed":1.5}
{"ImportPath":"github.com/hasplock/hasp/b [b.test]","Action":"build-output","Output":"b.go:1: undefined: x\n"}
{"Action":"start","Package":"github.com/hasplock/hasp/b"}
{"Action":"fail","Package":"github.com/hasplock/hasp/b","Elapsed":0,"FailedBuild":"github.com/hasplock/hasp/b [b.test]"}
{"Action":"start","Package":"github.com/hasplock/hasp/c"}
{"Action":"run","Package":"github.com/hasplock/hasp/c","Test":"TestHangs"}
{"Action":"output","Package":"github.com/hasplock/hasp/c","Test":"TestHangs","Output":"panic: test timed out\n"}
{"Action":"fail","Package":"github.com/hasplock/hasp/c","Elapsed":2}
not of go test
`

func TestReport(t *testing.T) {
	var out bytes.Buffer
	r := newReport(&out, 3)
	if err := r.read(strings.NewReader(stream)); err != nil {
		t.Fatal(err)
	}
	r.finish()
	got := out.String()
	for _, want := range []string{
		"a_test.go:12: two hold", "WARNING: DATA RACE\nWrite at 0x1\n", "b.go:1: undefined: x",
		"it was at TestHangs:\npanic: test timed out", "not of go test",
		"Not run:\n     1  long: runs in make test-all\n", "1 tests passed in 3 packages",
		"FAILED: github.com/hasplock/hasp/a github.com/hasplock/hasp/b github.com/hasplock/hasp/c",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("it does not say %q:\n%s", want, got)
		}
	}
	if strings.Contains(got, "noise") {
		t.Errorf("it repeats what a test said that has passed:\n%s", got)
	}
}

func TestLongTests(t *testing.T) {
	dir := t.TempDir()
	p := pkg{ImportPath: "p", Dir: dir, TestGoFiles: []string{"a_test.go"}}
	write := func(body string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "a_test.go"), []byte("package p\n"+body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`
func TestShort(t *testing.T) { t.Parallel() }
func TestCrowd(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
}
func TestStorm(t *testing.T) { testtier.Long(t) }
func helper(t *testing.T) {}
`)
	if names, err := p.longTests(); err != nil || !slices.Equal(names, []string{"TestCrowd", "TestStorm"}) {
		t.Errorf("%v, %v", names, err)
	}
	// go test chooses by name: what is long within a test cannot be run without the rest.
	write("func TestCases(t *testing.T) { t.Run(\"many\", func(t *testing.T) { testtier.Long(t) }) }\n")
	if names, err := p.longTests(); err == nil {
		t.Errorf("a case that is long: %v", names)
	}
}

func TestTiers(t *testing.T) {
	pkgs := func() []pkg {
		return []pkg{
			{ImportPath: "store", XTestGoFiles: []string{"x_test.go"}, XTestImports: []string{backends}},
			{ImportPath: module + "/cmd/hasp", XTestGoFiles: []string{"x_test.go"}, XTestImports: []string{backends}},
			{ImportPath: "core", TestGoFiles: []string{"x_test.go"}},
			{ImportPath: "untested"},
		}
	}
	for tier, want := range map[string][]string{
		"quick": {module + "/cmd/hasp", "core"},
		"test":  {"store", module + "/cmd/hasp", "core"},
		"all":   {"store", module + "/cmd/hasp", "core"},
	} {
		if inv, err := command(tier, pkgs()); err != nil || !slices.Equal(inv.packages, want) {
			t.Errorf("%s: %v, %v", tier, inv.packages, err)
		}
	}
	if _, err := command("slow", nil); err == nil {
		t.Error("a tier that there is not")
	}
}

// A series ends with the first run that fails, and its load with it.
func TestSeries(t *testing.T) {
	for _, bad := range []string{"-runs=0", "-load=-1", "-disk=2", "-what=1"} {
		if _, _, err := parseSeries([]string{bad, "test"}); err == nil {
			t.Errorf("%s was accepted", bad)
		}
	}
	s, rest, err := parseSeries([]string{"-runs=3", "-load=2", "-disk=1", "test", "-count=1"})
	if err != nil || s != (series{3, 2, 1, true}) || !slices.Equal(rest, []string{"test", "-count=1"}) {
		t.Fatalf("%+v, %v, %v", s, rest, err)
	}
	for flags, fresh := range map[string]bool{"": false, "-runs=1": true, "-load=8": true, "-disk=1": true} {
		args := append(strings.Fields(flags), "test", "-race")
		if s, _, err := parseSeries(args); err != nil || s.fresh != fresh {
			t.Errorf("%q: %+v, %v", args, s, err)
		}
	}
	var said strings.Builder
	runs, failed := 0, errors.New("failed")
	err = s.repeat(&said, func() error {
		if runs++; runs == 2 {
			return failed
		}
		return nil
	})
	if err != failed || runs != 2 || !strings.Contains(said.String(), "run 2 of 3, beside 2 busy threads: ") {
		t.Errorf("%d runs, %v\n%s", runs, err, &said)
	}
}
