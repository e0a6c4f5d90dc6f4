// Command runtests runs the tests in tiers, reports its progress, and says at the end which tests
// did not run and why.
//
//	runtests quick   what needs no server, without the race detector
//	runtests test    every store on one topology, with the race detector
//	runtests long    what "test" leaves out: tests that call testtier.Long
//	runtests all     test and long in one run
//
// Arguments after the tier are go test's: flags first, then packages. With -runs=N in front of it the tier is run so often, with
// -load=N beside so many busy threads, and with -disk=N the N-th run beside a file that is written and synced all the time.
// With any of these each test runs: go test's cache is not asked.
//
// It runs go test and adds two reports: which tests of a tier were skipped for which reason, over
// all packages; and which packages are running while nothing is printed.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

const usage = "usage: runtests [-runs=N] [-load=N] [-disk=N] quick|test|long|all [flags of go test] packages"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "runtests:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	s, args, err := parseSeries(args)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, usage)
	}
	if len(args) == 0 {
		return errors.New(usage)
	}
	isFlag := func(s string) bool { return strings.HasPrefix(s, "-") }
	flags, patterns := args[1:], []string{}
	if i := slices.IndexFunc(flags, func(s string) bool { return !isFlag(s) }); i >= 0 {
		flags, patterns = flags[:i], flags[i:]
	}
	if slices.ContainsFunc(patterns, isFlag) {
		return errors.New("a flag after the packages; of a flag with a value write -flag=value\n" + usage)
	}
	if len(patterns) == 0 {
		return errors.New("name the packages: ./... is one module of several (make test names all)\n" + usage)
	}
	pkgs, err := list(patterns)
	if err != nil {
		return err
	}
	goTest, err := command(args[0], pkgs)
	if err != nil {
		return err
	}
	if len(goTest.packages) == 0 {
		return fmt.Errorf("no package of %v has tests of the tier %q", patterns, args[0])
	}
	if s.fresh {
		flags = append(flags, "-count=1") // else go test prints what it remembers
	}
	return s.repeat(os.Stdout, func() error { return goTest.run(flags, os.Stdout) })
}

// invocation is one go test.
type invocation struct {
	flags    []string
	env      []string // beside our own
	packages []string
}

// command says how the packages' tests of a tier are run.
func command(tier string, pkgs []pkg) (invocation, error) {
	race := []string{"-race"}
	// When all tests have ended, nothing is left to race: its second of sleep at the end of each
	// process would be the longest test of most packages.
	// On two cores a run takes as long as its processor time. So garbage may stand for longer; and a JVM that serves for seconds does not
	// get back what it spends on its second compiler. (Benchmarks do not run here.)
	inv := invocation{env: []string{"GORACE=atexit_sleep_ms=0", "GOGC=400", "JAVA_TOOL_OPTIONS=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}}
	switch tier {
	case "quick":
		// Without servers and the race detector, the longest packages wait more than they compute: on two
		// cores ten tests at once take 54 seconds, the default 64.
		inv.flags, inv.env = []string{"-short", "-parallel=10"}, append(inv.env, "HASP_NO_SERVERS=1")
		pkgs = slices.DeleteFunc(pkgs, pkg.needsServers)
	case "test":
		inv.flags = append(race, "-short")
	case "all":
		inv.flags = race
	case "long":
		return inv.long(race, pkgs)
	default:
		return inv, fmt.Errorf("no tier %q\n%s", tier, usage)
	}
	for _, p := range pkgs {
		if p.tests() > 0 {
			inv.packages = append(inv.packages, p.ImportPath)
		}
	}
	return inv, nil
}

// run runs it, and reports on it. It returns an error if a test has failed.
func (inv invocation) run(flags []string, out *os.File) error {
	// Not -v: -json brings the names of all tests anyway.
	args := slices.Concat([]string{"test", "-json"}, inv.flags, flags, inv.packages)
	cmd := exec.Command("go", args...)
	cmd.Env = append(cmd.Environ(), inv.env...)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	r := newReport(out, len(inv.packages))
	read := r.read(stdout)
	err = cmd.Wait()
	r.finish()
	if read != nil {
		return read
	}
	if err != nil {
		return fmt.Errorf("tests failed: %w", err)
	}
	return nil
}
