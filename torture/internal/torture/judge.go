//go:build unix

package torture

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/history"
)

// mostShown is how many violations a verdict has in words; the record has all.
const mostShown = 20

// judge reads the record of all workers. They have ended.
func (r *run) judge(left settled, tried *trial) (*Verdict, error) {
	paths, err := filepath.Glob(filepath.Join(r.dir, "*.history"))
	if err != nil {
		return nil, err
	}
	all, err := history.Load(paths...)
	if err != nil {
		return nil, err
	}
	idle, err := readLines[Stall](filepath.Join(r.dir, stalls))
	if err != nil {
		return nil, err
	}
	traits := r.traits()
	v := r.verdict(left, traits.Fencing)
	var ours, control history.History
	for _, o := range all {
		if o.Name == r.control {
			control = append(control, o)
		} else {
			ours = append(ours, o)
		}
	}
	if r.Adapter != "" {
		traits.Fencing = givesTokens(ours)
		v.Fencing = traits.Fencing
	}
	v.countHits(r.faults, all, r.control)
	busy, stopped := disturbances(r.faults, idle, history.Time(r.ttl))
	excused := map[string]excuse{}
	if traits.Liveness == driver.ConnectionBound {
		ours, excused = untilCut(ours, r.faults)
	}
	ours, forgets := untilForgotten(ours, r.forgetting(), history.Time(r.ttl), excused)
	v.measure(ours, busy, stopped, excused, traits)
	if tried != nil {
		tried.addTo(v)
	}
	for _, s := range idle {
		if s.Answer {
			v.SlowAnswers++
		}
	}
	var found []history.Violation
	for _, epoch := range epochs(ours, forgets, history.Time(r.ttl)) {
		found = append(found, history.Check(epoch, history.Options{Fencing: traits.Fencing})...)
	}
	for _, x := range found[:min(len(found), mostShown)] {
		v.Violations = append(v.Violations, x.String())
	}
	if err := v.readRegisters(r.dir, r.names, r.control); err != nil {
		return nil, err
	}
	v.Control.What = r.controlName()
	v.measureControl(control)
	v.conclude()
	return v, nil
}

// verdict is one with all that was known before the record is read.
func (r *run) verdict(left settled, fencing bool) *Verdict {
	v := &Verdict{
		Store: r.storeName(), Adapter: r.Adapter, AdapterEnds: r.ends, AdapterEnd: r.lastEnd, Seed: r.Seed, Kinds: r.Faults, Seconds: r.For.Seconds(), Processes: r.Processes, Names: r.Names,
		TTL: r.ttl.Seconds(), Planned: len(Plan(r.Config)), Faults: map[Kind]Count{}, Fencing: fencing,
		Stuck: left.stuck, Deaths: r.deaths, KilledAtEnd: r.killedAtEnd, Violations: []string{},
		Control: Control{Kinds: map[Kind]int{}}, enough: Enough(r.Config),
	}
	if left.listed {
		v.Orphans = &left.orphans
	}
	return v
}

func (v *Verdict) measureControl(control history.History) {
	v.Control.Violations = len(history.Exclusion(control))
	for i := range control {
		if control[i].Outcome == history.Granted {
			v.Control.Acquisitions++
		}
	}
}

func (r *run) controlName() string {
	if r.lockFile() {
		return "a lock file with a time, since no fault here can take a lock of this store away"
	}
	return "a lock that is not asked whether it still holds"
}

// countHits finds by the record which faults came upon a holder.
func (v *Verdict) countHits(faults []Fault, all history.History, control string) {
	byClient := map[string][]*history.Operation{}
	var everybody []*history.Operation
	for i := range all {
		byClient[all[i].Client] = append(byClient[all[i].Client], &all[i])
		everybody = append(everybody, &all[i])
	}
	for i := range faults {
		f := &faults[i]
		c := v.Faults[f.Kind]
		c.Done++
		onControl := false
		of := byClient[f.Client]
		if f.Client == "" {
			of = everybody
		}
		for _, o := range of {
			if o.Outcome != history.Granted || o.Return > f.From || over(o) != 0 && over(o) < f.From {
				continue
			}
			if o.Name == control {
				onControl = true
				continue
			}
			f.Holder = true
			f.Lost = f.Lost || o.Lost > 0 || f.Kind == Kill
		}
		if f.Holder {
			c.Hits++
			v.Hits++
		}
		if f.Lost {
			c.Lost++
		}
		if onControl {
			v.Control.Hits++
			v.Control.Kinds[f.Kind]++
		}
		v.Faults[f.Kind] = c
	}
	slices.SortFunc(faults, func(a, b Fault) int { return cmp.Compare(a.From, b.From) })
}

// over is when a holder stopped working under the lock; 0 if that is not known, since it was
// killed.
func over(o *history.Operation) history.Time {
	if o.ReleaseCall > 0 {
		return o.ReleaseCall
	}
	return o.Lost
}

func (v *Verdict) readRegisters(dir string, names []string, control string) error {
	for _, name := range append(slices.Clone(names), control) {
		for _, fenced := range []bool{false, true} {
			r, err := openRegister(dir, name, fenced)
			if err != nil {
				return err
			}
			s, err := r.load()
			r.close()
			if err != nil {
				return err
			}
			switch {
			case name == control && !fenced:
				v.Control.Lost += s.Lost
			case name == control:
			case fenced:
				v.LostFenced, v.Refused = v.LostFenced+s.Lost, v.Refused+s.Refused
			default:
				v.LostPlain, v.Writes = v.LostPlain+s.Lost, v.Writes+s.Version
			}
		}
	}
	return nil
}

// readLines reads what appendLine has written. A line that was cut short by a kill is left out.
func readLines[T any](path string) (all []T, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		var v T
		err := json.NewDecoder(bytes.NewReader([]byte(line))).Decode(&v)
		switch {
		case err == nil:
			all = append(all, v)
		case !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
			return nil, err
		}
	}
	return all, nil
}
