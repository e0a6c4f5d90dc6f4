package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// quietFor is how long nothing may be printed before a line says what is running.
const quietFor = 30 * time.Second

// event is a line of go test -json.
type event struct {
	Time        time.Time
	Action      string
	Package     string
	ImportPath  string // of a build's output
	Test        string
	Elapsed     float64 // seconds
	Output      string
	FailedBuild string
}

// report turns events into text.
type report struct {
	out   io.Writer
	begun time.Time
	total int

	mu      sync.Mutex
	printed time.Time
	running map[string]*progress // by package
	ended   int
	failed  []string
	builds  map[string]*strings.Builder
	skipped map[string]int // by reason
	passed  int
	stop    chan struct{}
}

// progress is a package at work.
type progress struct {
	passed, failed int
	skipped        int
	tests          map[string]*test
	output         strings.Builder // of the package itself
	racing         bool            // in the race detector's words, which any test may seem to have said
}

// test is one that has not passed: what it prints is of interest if it fails or is skipped.
type test struct {
	begun  time.Time
	output strings.Builder
}

func newReport(out io.Writer, packages int) *report {
	now := time.Now()
	r := &report{
		out: out, begun: now, total: packages, printed: now,
		running: map[string]*progress{}, builds: map[string]*strings.Builder{}, skipped: map[string]int{}, stop: make(chan struct{}),
	}
	go r.reassure()
	return r
}

// reassure prints the running packages whenever nothing else has been printed for a while.
func (r *report) reassure() {
	for tick := time.NewTicker(time.Second); ; {
		select {
		case <-r.stop:
			tick.Stop()
			return
		case <-tick.C:
		}
		r.mu.Lock()
		if time.Since(r.printed) >= quietFor {
			r.say("     %s: %s", since(r.begun), r.atWork())
		}
		r.mu.Unlock()
	}
}

// atWork names the running packages, each with its test that has run longest.
func (r *report) atWork() string {
	if len(r.running) == 0 {
		return "building"
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(r.running)) {
		p := r.running[name]
		at := fmt.Sprintf("%s %d done", short(name), p.passed+p.skipped+p.failed)
		if oldest := p.oldest(); oldest != "" {
			at += ", at " + oldest
		}
		all = append(all, at)
	}
	return strings.Join(all, "; ")
}

// oldest is the innermost test that was begun first.
func (p *progress) oldest() (name string) {
	leaf := func(name string) bool {
		for other := range p.tests {
			if strings.HasPrefix(other, name+"/") {
				return false
			}
		}
		return true
	}
	for _, n := range slices.Sorted(maps.Keys(p.tests)) {
		if leaf(n) && (name == "" || p.tests[n].begun.Before(p.tests[name].begun)) {
			name = n
		}
	}
	return name
}

// read takes the events of go test until it ends.
func (r *report) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			r.take(line)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *report) take(line []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var e event
	if json.Unmarshal(line, &e) != nil {
		r.say("%s", strings.TrimRight(string(line), "\n")) // not go test's: pass it on
		return
	}
	switch {
	case e.Action == "build-output":
		b := r.builds[e.ImportPath]
		if b == nil {
			b = &strings.Builder{}
			r.builds[e.ImportPath] = b
		}
		b.WriteString(e.Output)
	case e.Package == "":
	case e.Test != "":
		r.takeTest(e, r.of(e))
	default:
		r.takePackage(e)
	}
}

func (r *report) of(e event) *progress {
	p := r.running[e.Package]
	if p == nil {
		p = &progress{tests: map[string]*test{}}
		r.running[e.Package] = p
	}
	return p
}

func (r *report) takeTest(e event, p *progress) {
	t := p.tests[e.Test]
	if t == nil {
		t = &test{begun: e.Time}
		p.tests[e.Test] = t
	}
	switch e.Action {
	case "output":
		if !p.races(e.Output) {
			t.output.WriteString(e.Output)
		}
		return
	case "pass":
		p.passed++
	case "skip":
		p.skipped++
		r.skipped[reason(t.output.String())]++
	case "fail":
		p.failed++
		r.say("%s", t.output.String())
	default: // run, pause, cont
		return
	}
	delete(p.tests, e.Test)
}

// races keeps the race detector's report for the package's end: the test that go test attributes it
// to may have passed.
func (p *progress) races(line string) bool {
	const edge = "=================="
	if !p.racing && !strings.Contains(line, "WARNING: DATA RACE") {
		return false
	}
	p.output.WriteString(line)
	p.racing = !strings.HasPrefix(line, edge)
	return true
}

func (r *report) takePackage(e event) {
	switch e.Action {
	case "output":
		r.of(e).output.WriteString(e.Output)
	case "start":
		r.of(e)
	case "pass", "fail", "skip":
		r.endPackage(e)
	}
}

func (r *report) endPackage(e event) {
	p := r.of(e)
	delete(r.running, e.Package)
	r.ended++
	r.passed += p.passed
	verdict := "ok  "
	if e.Action == "fail" {
		verdict = "FAIL"
		r.failed = append(r.failed, e.Package)
		if b := r.builds[e.FailedBuild]; b != nil {
			r.say("%s", b)
		}
		for _, name := range slices.Sorted(maps.Keys(p.tests)) { // a crash, or a time-out
			r.say("it was at %s:\n%s", name, &p.tests[name].output)
		}
		r.say("%s", &p.output)
	}
	r.say("%s %6.1fs  %-24s %4d passed, %d skipped  (%d of %d)", verdict, e.Elapsed, short(e.Package), p.passed, p.skipped, r.ended, r.total)
}

// finish says what did not run, and the result.
func (r *report) finish() {
	close(r.stop)
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.skipped) > 0 {
		r.say("\nNot run:")
		reasons := slices.SortedFunc(maps.Keys(r.skipped), func(a, b string) int {
			return cmp.Or(r.skipped[b]-r.skipped[a], strings.Compare(a, b))
		})
		for _, why := range reasons {
			r.say("%6d  %s", r.skipped[why], why)
		}
	}
	r.say("\n%d tests passed in %d packages, %s", r.passed, r.ended, since(r.begun))
	if len(r.failed) > 0 {
		r.say("FAILED: %s", strings.Join(r.failed, " "))
	}
}

func (r *report) say(format string, args ...any) {
	r.printed = time.Now()
	fmt.Fprintln(r.out, strings.TrimRight(fmt.Sprintf(format, args...), "\n"))
}

// where is the place that package testing puts before a test's message.
var where = regexp.MustCompile(`^\s+\S+\.go:\d+: `)

// reason is the first line of a skipped test's last message.
func reason(output string) string {
	why := "for no reason given"
	for line := range strings.Lines(output) {
		if place := where.FindString(line); place != "" {
			why = strings.TrimSpace(line[len(place):])
		}
	}
	return why
}

func since(t time.Time) time.Duration { return time.Since(t).Round(time.Second) }

// short is a package's path below the module's.
func short(pkg string) string {
	if pkg == module {
		return "."
	}
	return strings.TrimPrefix(pkg, module+"/")
}
