//go:build unix

package torture

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Text is the verdict for people.
func (v *Verdict) Text() string {
	var b strings.Builder
	for _, l := range v.lines() {
		if l == (line{}) {
			b.WriteString("\n")
			continue
		}
		fmt.Fprintf(&b, "%-21s%s\n", l.What, l.Text)
	}
	for _, x := range v.Violations {
		fmt.Fprintf(&b, "\n%s\n", x)
	}
	fmt.Fprintf(&b, "\n%s\n", v.Sentence())
	return b.String()
}

// line is one of the verdict's lines; an empty one parts what was done from what was found.
type line struct{ What, Text string }

func (v *Verdict) lines() (all []line) {
	add := func(what, format string, args ...any) { all = append(all, line{what, fmt.Sprintf(format, args...)}) }
	add("store", "%s", v.Store)
	if v.Adapter != "" {
		add("lock under test", "%s", v.Adapter)
	}
	add("run", "%g s, %d processes, %d names, a TTL of %s, seed %d", v.Seconds, v.Processes, v.Names, short(v.TTL), v.Seed)
	add("acquisitions", "%d, and %d that had no answer", v.Acquisitions, v.Unanswered)
	for _, k := range v.Kinds {
		c := v.Faults[k]
		add("fault "+string(k), "%d, of which %d hit a holder and %d took its lock", c.Done, c.Hits, c.Lost)
	}
	all = append(all, line{})
	o := v.Overlaps
	add("two held at once", "%s", count(o.Broken))
	add("overlapping beliefs", "%s", v.unpreventable())
	if o.Forgot > 0 {
		add("the server forgot", "%d more overlaps: granted before it was started anew, and again after it; this store does not promise to prevent that", o.Forgot)
	}
	add("lost updates", "%s without a fence, of %d writes; %s", count(v.LostPlain), v.Writes, v.fence())
	add("false \"released\"", "%s", count(v.FalseEnds))
	add("stuck names", "%s", count(len(v.Stuck)))
	for _, s := range v.Stuck {
		add("stuck", "%s", s)
	}
	add("orphans", "%s", optional(v.Orphans, "not known: the store cannot list its entries"))
	add("overtaken waiters", "%s", optional(v.Inversions, v.orderless()))
	if v.Leaks != nil {
		add("leaks", "%s, of %d unlocks after the run", count(*v.Leaks), v.Releases)
	}
	if v.TrialFailed != "" {
		add("not tried to its end", "%s", v.TrialFailed)
	}
	if v.SlowAnswers > 0 {
		add("slow answers", "%d of the adapter took longer than %s", v.SlowAnswers, short(v.TTL/6))
	}
	if v.MarginMin != nil {
		add("told of a loss", "%s the next grant at worst, %s it in the middle (%d losses of a process that ran)",
			beside(*v.MarginMin), beside(*v.MarginMid), len(v.Margins))
	}
	if v.HandOver != nil {
		add("slowest hand-over", "%s, of those without a fault near", short(*v.HandOver))
	}
	for _, d := range v.Deaths {
		add("died", "%s", d)
	}
	if v.AdapterEnds > 0 {
		add("adapters ended", "%d by themselves, the last one: %s", v.AdapterEnds, v.AdapterEnd)
	}
	if v.KilledAtEnd > 0 {
		add("did not end", "%d processes had to be killed at the end of the run", v.KilledAtEnd)
	}
	c := v.Control
	add("control", "%s, under the same faults: %d violations and %d lost updates in %d acquisitions and %s", c.What, c.Violations, c.Lost, c.Acquisitions, c.hits())
	return all
}

// orderless is why no overtaking was counted.
func (v *Verdict) orderless() string {
	switch {
	case v.Ordered:
		return "not known: it was not tried to its end"
	case v.Adapter != "":
		return "not counted: the adapter promises no order"
	}
	return "not counted: the store promises no order"
}

// hits are the faults that came upon a holder of the control, by kind.
func (c *Control) hits() string {
	var kinds []string
	for _, k := range slices.Concat(Kinds, ServerKinds) {
		if n := c.Kinds[k]; n > 0 {
			kinds = append(kinds, fmt.Sprintf("%d %s", n, k))
		}
	}
	if len(kinds) == 0 {
		return "0 faults"
	}
	return fmt.Sprintf("%d faults (%s)", c.Hits, strings.Join(kinds, ", "))
}

// unpreventable says of overlaps that broke no promise what they were.
func (v *Verdict) unpreventable() string {
	o := v.Overlaps
	n := o.InFlight + o.Told + o.CutOff
	if n == 0 {
		return "none"
	}
	text := fmt.Sprintf("%d, which break no promise: no lock can prevent them, and a fence makes them harmless: %d of holders that were stopped or had a write in flight, %d that had been told and were about to notice", n, o.InFlight, o.Told)
	if o.CutOff > 0 {
		text += fmt.Sprintf(", %d whose connection was cut, told in time", o.CutOff)
	}
	return text
}

func (v *Verdict) fence() string {
	if !v.Fencing {
		return "the store gives no tokens to fence with"
	}
	return fmt.Sprintf("%s with one, which refused %d", count(v.LostFenced), v.Refused)
}

// Sentence is the verdict in one.
func (v *Verdict) Sentence() string {
	var text string
	switch v.Result {
	case BrokenResult:
		text = "BROKEN: " + v.Broken + "."
		if v.Record != "" {
			text += " The record is in " + v.Record + "."
		}
	case Inconclusive:
		text = "INCONCLUSIVE: " + v.unclear()
	default:
		text = "Every promise held, and the control was caught."
		if v.Adapter != "" {
			text = "Nothing was seen that no lock may do, and the control was caught."
		}
	}
	if v.Result != BrokenResult && v.Hits < fewHits {
		text += fmt.Sprintf(" Only %d faults hit a holder, which says little: run for longer.", v.Hits)
	}
	return text
}

// unclear is why a run is inconclusive, and what to do.
func (v *Verdict) unclear() string {
	done := 0
	for _, c := range v.Faults {
		done += c.Done
	}
	busy := ""
	if 2*done < v.Planned {
		busy = fmt.Sprintf(" The machine was too slow: of %d planned faults %d were carried out.", v.Planned, done)
	}
	text := "the naive lock was not caught, so this run would not have seen a lock that fails; "
	switch {
	case v.Control.Violations > 0 && v.Undisturbed < fewUndisturbed:
		return fmt.Sprintf("the machine, or the adapter, was too slow to be judged: nothing disturbed the holder in %d of %d acquisitions, and %d answers took longer than %s. Use a longer --ttl, or a machine that does less.%s",
			v.Undisturbed, v.Acquisitions, v.SlowAnswers, short(v.TTL/6), busy)
	case v.Control.Violations > 0 && v.leaksUnsure():
		return fmt.Sprintf("the machine, or the adapter, was too slow to be judged: after %d of %d unlocks the next lock took half of a TTL, and %d answers took longer than %s. Use a longer --ttl, or a machine that does less.%s",
			deref(v.Leaks), v.Releases, v.SlowAnswers, short(v.TTL/6), busy)
	case v.Control.Violations > 0:
		return fmt.Sprintf("the adapter was not tried to its end after the run: %s.", v.TrialFailed)
	case v.Control.Hits == 0:
		return text + "no fault came upon its holder: run for longer." + busy
	case v.enough > 0:
		return text + fmt.Sprintf("its holder met %s. Run for longer: --for %s has three faults of each kind for it.", v.Control.hits(), max(v.enough, 2*time.Duration(v.Seconds*float64(time.Second)))) + busy
	}
	return text + fmt.Sprintf("its holder met %s: add faults that take a lock away (pause, hold, cut).", v.Control.hits()) + busy
}

func count[N int | uint64](n N) string {
	if n == 0 {
		return "none"
	}
	return fmt.Sprint(n)
}

func optional(n *int, otherwise string) string {
	if n == nil {
		return otherwise
	}
	return count(*n)
}

// beside says when a loss was told, by its margin.
func beside(margin float64) string {
	if margin < 0 {
		return short(-margin) + " after"
	}
	return short(margin) + " before"
}

func short(s float64) string {
	d := time.Duration(s * float64(time.Second))
	switch {
	case d.Abs() >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d.Abs() >= time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	}
	return d.Round(time.Microsecond).String()
}
