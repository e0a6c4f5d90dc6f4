// Command interop lets hasp and other people's lock libraries contend for the same locks on real
// servers, and checks the result.
//
// For each pair it starts a client of theirs and one of hasp as processes that speak one small
// protocol (protocol.go), and goes through the steps of steps.go: exclusion, tries, hand-overs both
// ways, holders killed and holders that overrun their lease. It installs what it needs into a cache
// folder; versions.json and ../go.mod say which versions. Controls that are broken on purpose show
// that the checks work.
//
// The table goes to standard output, progress to standard error. The exit code is 1 if a
// pair violated a lock or failed otherwise, and with CI set also if one could not be run.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"
)

func main() {
	if len(os.Args) > 1 {
		if role := roles[os.Args[1]]; role != nil {
			if err := role(os.Args[2:]); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			return
		}
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "interop:", err)
		os.Exit(1)
	}
}

// roles are what this program is besides the runner.
var roles = map[string]func(args []string) error{"client": beClient, "adapter": beAdapter, "peers": torturePeers, "campaign": runCampaign}

// options are the flags.
type options struct {
	json     bool
	only     *regexp.Regexp
	parallel int
	versions string
	cache    string
}

func parse() (options, error) {
	var o options
	only := flag.String("only", "", "run the pairs whose line in the table matches this regular expression")
	flag.BoolVar(&o.json, "json", false, "print JSON instead of a table")
	flag.IntVar(&o.parallel, "parallel", 5, "how many pairs run at the same time; 1 for hand-over times without neighbours")
	flag.StringVar(&o.versions, "versions", "new", "which versions of the other languages' packages: new, or old (those pairs, and the controls)")
	flag.StringVar(&o.cache, "cache", "", "where to keep what is installed (default: a folder of the user's cache)")
	flag.Parse()
	if flag.NArg() > 0 || o.parallel < 1 {
		return o, errors.New("no arguments are taken, and parallel is at least 1; see -help")
	}
	if sets[o.versions] == "" {
		return o, fmt.Errorf("no set of versions is called %q: new and old are", o.versions)
	}
	var err error
	if o.only, err = regexp.Compile(*only); err != nil {
		return o, err
	}
	if o.cache == "" {
		o.cache, err = defaultCache()
	}
	return o, err
}

func defaultCache() (string, error) {
	base, err := os.UserCacheDir()
	return filepath.Join(base, "hasp-interop"), err
}

func run() error {
	o, err := parse()
	if err != nil {
		return err
	}
	began := time.Now()
	results := playAll(&o)
	if o.json {
		text, err := json.MarshalIndent(results, "", "  ")
		if err != nil {
			return err
		}
		fmt.Println(string(text))
	} else {
		table(os.Stdout, results)
	}
	fmt.Fprintf(os.Stderr, "interop: %d pairs in %s\n", len(results), time.Since(began).Round(time.Second))
	return verdict(results, os.Getenv("CI") != "")
}

// playAll runs what was chosen, a few at a time.
func playAll(o *options) []*result {
	chosen := choose(o.only, o.versions)
	results := make([]*result, len(chosen))
	slots := make(chan struct{}, o.parallel)
	c := &cache{dir: o.cache, set: o.versions}
	var wg sync.WaitGroup
	for i, p := range chosen {
		wg.Go(func() {
			_, _, _ = c.command(p) // takes no slot while it installs; play says what went wrong
			slots <- struct{}{}
			defer func() { <-slots }()
			results[i] = play(c, p)
		})
	}
	wg.Wait()
	return results
}

// choose returns what the expression matches. Of the old versions' run what is not of that
// set is left out, but for the controls: it would be the new one's again.
func choose(only *regexp.Regexp, set string) []pair {
	chosen := slices.DeleteFunc(slices.Concat(pairs, specials, controls), func(p pair) bool {
		return !only.MatchString(p.title()) || set == "old" && p.program == golang && p.expect == nil
	})
	for i, p := range chosen {
		if set == "old" && p.old != nil {
			chosen[i].special = p.old
		}
	}
	return chosen
}

// play runs one pair.
func play(c *cache, p pair) *result {
	began := time.Now()
	r := &result{Store: p.store, Theirs: p.theirs, Control: p.expect != nil}
	err := prepareAndPlay(c, p, r)
	if err != nil {
		r.Missing = err.Error()
	}
	r.Caught = r.Control && r.caught(p.expect)
	word := "good"
	if !r.good() {
		word = "BAD"
	}
	fmt.Fprintf(os.Stderr, "interop: %-4s %s (%s)\n", word, p.title(), time.Since(began).Round(time.Second))
	complain(os.Stderr, r)
	return r
}

// prepareAndPlay fails if the pair could not be run: a program is not installed. Every later
// failure is the pair's.
func prepareAndPlay(c *cache, p pair, r *result) error {
	argv, env, err := c.command(p)
	if err != nil {
		return err
	}
	server, err := address(p.server)
	if err != nil {
		return err
	}
	exe, err := self()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "hasp-interop-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	m := &match{pair: p, dir: dir, r: r, shortest: short}
	m.start = func(label string, ours bool, ttl time.Duration) (*process, error) {
		if ours {
			return start(label, []string{exe, "client", "hasp", p.ourKind}, environ(fmt.Sprintf(p.url, server), ttl))
		}
		return start(label, append(slices.Clone(argv), m.library, m.kind), append(slices.Clone(env), environ(server, ttl)...))
	}
	if p.special != nil {
		m.note(p.special(m, server), "the whole")
		return nil
	}
	m.play()
	return nil
}
