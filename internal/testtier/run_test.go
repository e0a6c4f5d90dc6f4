package testtier_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hasplock/hasp/internal/testtier"
)

// module is one with a test of each kind. Its testtier is a stand-in, for run.sh reads the calls, in
// this file too: so they are written LONG.
const module = `package m

import "testing"

type tier struct{}

func (tier) Long(t *testing.T) {
	if testing.Short() {
		t.Skip("long: not in this tier")
	}
}

var testtier tier

func TestShort(t *testing.T) {}

func TestCrowd(t *testing.T) {
	LONG(t) // with a reason
}
`

// run runs the script in a module of that text, and returns what it said and its exit code.
func run(t *testing.T, text, script string, args ...string) (string, int) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module example.com/m\n\ngo 1.26.0\n", "m_test.go": text} {
		text = strings.ReplaceAll(text, "LONG", "testtier"+".Long")
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	path, err := filepath.Abs(script)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Dir = dir
	cmd.Env = append(cmd.Environ(), "GOWORK=off")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func TestTiers(t *testing.T) {
	testtier.Long(t)
	const skipped = "1  long: not in this tier"
	for tier, want := range map[string]struct{ has, lacks []string }{
		"quick": {[]string{skipped}, nil},
		"test":  {[]string{skipped}, nil},
		"long":  {[]string{"DONE 1 tests"}, []string{skipped}},
		"all":   {[]string{"DONE 2 tests"}, []string{skipped}},
	} {
		out, code := run(t, module, "run.sh", tier, "-count=1", "./...")
		for _, has := range want.has {
			if !strings.Contains(out, has) {
				t.Errorf("%s does not say %q:\n%s", tier, has, out)
			}
		}
		for _, lacks := range want.lacks {
			if strings.Contains(out, lacks) {
				t.Errorf("%s says %q:\n%s", tier, lacks, out)
			}
		}
		if code != 0 {
			t.Errorf("%s: exit code %d:\n%s", tier, code, out)
		}
	}
}

// What fails is shown, and the exit code tells it: a test, a race, a build, a test that ends the process.
func TestFailures(t *testing.T) {
	testtier.Long(t)
	t.Setenv("AGAIN", "0")
	for body, says := range map[string]string{
		`func TestBad(t *testing.T) { t.Error("two hold") }`:                                                          "two hold",
		`func TestRace(t *testing.T) { n, done := 0, make(chan int); go func() { n++; close(done) }(); n++; <-done }`: "DATA RACE",
		`func TestHangs(t *testing.T) { select {} }`:                                                                  "test timed out after 3s",
		`func TestBuild(t *testing.T) { undefined() }`:                                                                "undefined: undefined",
		`func TestExit(t *testing.T) { println("going"); panic("gone") }`:                                             "gone",
		`func TestCases(t *testing.T) { t.Run("many", func(t *testing.T) { t.Log("x"); LONG(t) }) }`:                  "may only be the first statement",
	} {
		tier := "test"
		if strings.Contains(body, "LONG") {
			tier = "long"
		}
		out, code := run(t, module+body+"\n", "run.sh", tier, "-count=1", "-timeout=3s", "./...")
		if code == 0 || !strings.Contains(out, says) {
			t.Errorf("%s: exit code %d, and not %q:\n%s", body, code, says, out)
		}
	}
	for _, args := range [][]string{nil, {"test"}, {"slow", "./..."}} {
		if out, code := run(t, module, "run.sh", args...); code != 2 {
			t.Errorf("%q: exit code %d:\n%s", args, code, out)
		}
	}
}

// With AGAIN what failed beside others may pass alone, but not what may never happen, not what fails
// alone too, and not what is many.
func TestAgain(t *testing.T) {
	testtier.Long(t)
	t.Setenv("AGAIN", "2")
	text := strings.Replace(module, `import "testing"`, `import ("os"; "testing")

// beside reports whether the run is the first, beside others.
func beside() bool { return os.Mkdir("was", 0o700) == nil }
`, 1)
	const many = "if beside() { for _, n := range []string{`a`, `b`} { t.Run(n, func(t *testing.T) { t.Error(`late`) }) } }"
	for body, passes := range map[string]bool{
		`if beside() { t.Error("no answer in 4s") }`: true,
		many:                         true,
		`t.Error("no answer in 4s")`: false,
		`if beside() { t.Error("a process says\nWARNING: DATA RACE") }`:                                               false,
		`if beside() { t.Error("x: two hold") }`:                                                                      false,
		`if beside() { t.Error("S2: a token does not grow: 3 after 4") }`:                                             false,
		`if beside() { n, done := 0, make(chan int); go func() { n++; close(done) }(); n++; <-done }`:                 false,
		`if beside() { panic("gone") }`:                                                                               false,
		"if beside() { select {} }":                                                                                   false,
		`if os.Mkdir("second", 0o700) == nil || os.Mkdir("third", 0o700) == nil { t.Error("red twice, then green") }`: false,
	} {
		tier := "quick"
		if strings.Contains(body, "n++") {
			tier = "test"
		}
		out, code := run(t, text+"func TestOne(t *testing.T) { "+body+" }\n", "run.sh", tier, "-count=1", "-timeout=10s", "./...")
		if (code == 0) != passes || strings.Contains(out, "Alone they pass") != passes {
			t.Errorf("%s: exit code %d:\n%s", body, code, out)
		}
	}
	var six strings.Builder
	for _, n := range "ABCDEF" {
		fmt.Fprintf(&six, "func Test%c(t *testing.T) { if os.Mkdir(t.Name(), 0o700) == nil { t.Error(`late`) } }\n", n)
	}
	if out, code := run(t, text+six.String(), "run.sh", "quick", "-count=1", "./..."); code == 0 {
		t.Errorf("six that failed are forgiven:\n%s", out)
	}
}

// A series ends with the first run that fails, and its load with it.
func TestSteady(t *testing.T) {
	testtier.Long(t)
	out, code := run(t, module, "steady.sh", "2", "1", "2", "test", "./...")
	if code != 0 || !strings.Contains(out, "run 2 of 2 beside 1 busy processes") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	out, code = run(t, module+"func TestBad(t *testing.T) { t.Error(1) }\n", "steady.sh", "2", "1", "0", "test", "./...")
	if code == 0 || strings.Contains(out, "run 1 of 2") || strings.Count(out, "DONE") != 1 {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}
