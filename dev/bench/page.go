package main

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// pageText is docs/PERFORMANCE.md around its table and its list.
const pageText = `# Performance

hasp beside other ways to lock, on the same servers and in the same run: %s, %d repetitions, on
%s. ` + "`make bench`" + ` writes this page: do not edit it.

Compare the figures of one store with each other, in this run only. They depend on this machine, on which servers
and clients share the cores: a quicker disk or processor moves some of them far more than others.

## The next holder

![time from a release to the next acquisition](img/perf-handover.svg)

Two clients hold one lock in turns, for 10 ms each. The time is from the call of Release to the other client's
having the lock. On most stores hasp's waiters are told by the store; a library that polls waits for its next look.

## 512 clients, one lock

![locks per second, and fairness, with 512 clients](img/perf-contention.svg)

512 clients in 8 processes want one lock and hold it for 1 ms, so that 1,000 per second is the limit. Fairness is Jain's
index over the number of locks that each client got: 1 if all got the same, 1/512 if one got all. A library
that polls lets the client that releases take the lock again: that looks quick, and the others starve.

The plain way costs something here: measured by turns with an earlier hasp, PostgreSQL's table fell from 396 to 336 locks per second (0.71 and
0.59 of a row inserted and deleted by hand), and etcd from 0.75 to 0.63 of the least that a lock there can cost. Since these figures, a hand-over of
the table reads 200 rows where it read 4,001 with 2,000 waiters.

## 10,000 locks held

![requests, processor time and memory for 10,000 held locks](img/perf-holding.svg)

One client holds 10,000 locks with a TTL of 10 s and nothing else happens. Renewing each lock with a request every third of its TTL
would be 3,000 requests per second: hasp renews many in one, and on stores with sessions it renews the session.

## Side by side

`

const pageAfterTable = `
"-": not measured. Each time is a median. "Alone" is one goroutine that locks and unlocks names without contention.
`

const pageRivals = `
## Where another library is faster, and why

Differences of more than 5 %% are listed. Where the repetitions disagree by more than %.0f %% there is no ratio, and the table has both medians.

`

const pageEnd = `
## Run it

` + "```" + `
make backends                           # installs the servers
make bench STORE=redis SCENARIO=S1,S6   # a part, to standard output
make bench                              # everything, about half an hour; writes this page
` + "```" + `

The machine should be quiet. A full run also writes dev/bench/RESULTS.md, which is not in the repository: all scenarios and figures,
as ratios beside the floor (the least that a lock on the store can cost) and the best peer.
`

// rivalReasons say on the users' page why another library, or the store's own lock used by hand, is
// faster somewhere. The key is the store and the contestant.
var rivalReasons = map[string]string{
	"redis/redsync": "It writes one key, and reads it again to delete it. hasp keeps a queue, an owner and a token in its script. redsync's waiters poll",
	"redis/bsm/redislock": "It writes one key with a plain SET. hasp keeps a queue, an owner and a token in its script, which takes the server longer. " +
		"With contention bsm/redislock polls: the client that releases usually takes the lock again without waiting",
	"redlock/redsync": "A waiter of hasp first enters a queue on all servers: fifteen requests for each lock where ten suffice without a queue. " +
		"redsync polls: the client that releases usually takes the lock again",
	"zookeeper/go-zookeeper": "Both read the whole queue to find the waiter in front. hasp reads it again when it is woken, since that waiter may have given up",
	"etcd/concurrency.Mutex": "hasp's values also carry the owner and a note, and its transactions compare more",
	"postgres/floor (advisory)": "It writes nothing: the lock lives in the server's memory and ends with the connection. " +
		"hasp also draws a token that grows over crashes of the server (`fence=off` does without), and with many waiters spreads them, so that PostgreSQL's search for deadlocks stays short",
	"mysql/floor (GET_LOCK)": "It writes nothing: the lock lives in the server's memory and ends with the connection. " +
		"hasp's SELECT also reads where the tokens begin, which grow over crashes of the server (`fence=off` does without), and where the lock is taken a procedure says so and waits",
	"file/gofrs/flock": "It makes one call of the kernel's and writes nothing: no token, no owner, no order of waiters. " +
		"hasp writes an entry into the queue's file, and wakes the next process through a named pipe",
}

// storeTitles are the stores in the words of their makers.
var storeTitles = map[string]string{
	"redis": "Redis", "redlock": "Redlock, 5 Redis", "zookeeper": "ZooKeeper", "etcd": "etcd",
	"postgres": "PostgreSQL", "mysql": "MariaDB", "file": "local files",
}

// page writes the users' page.
func (r *report) page(w io.Writer) {
	fmt.Fprintf(w, pageText, r.When, r.Reps, r.Machine)
	fmt.Fprint(w, "| | alone: lock + unlock | 64 names at once | next holder | 512 clients | fairness |\n| --- | --- | --- | --- | --- | --- |\n")
	for _, store := range r.stores() {
		fmt.Fprintf(w, "| **%s** | | | | | |\n", storeTitles[store])
		for _, who := range r.shown(store) {
			at := func(scenario string) figures {
				o, _ := find(r.Tables, store, scenario, who.Who)
				return o.Median
			}
			fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s |\n", who.title(),
				duration(at("S1").P50), perSecondText(at("S2").Rate), duration(at("S6").P50),
				perSecondText(at("S3-512").Rate), fairnessText(at("S3-512").Jain))
		}
	}
	fmt.Fprint(w, pageAfterTable)
	r.measuredAgain(w)
	r.failures(w)
	fmt.Fprintf(w, pageRivals, 100*disagreement)
	r.rivalsWin(w)
	fmt.Fprint(w, pageEnd)
}

// measuredAgain says which figures of the page are of another time than the rest: those of the table, and of the
// picture of held locks.
func (r *report) measuredAgain(w io.Writer) {
	words := map[string]string{"S5": "10,000 locks held"}
	for _, c := range comparisons {
		words[c.scenario] = c.words
	}
	var all []string
	for _, store := range r.stores() {
		var again []string
		for _, t := range r.Tables {
			if t.Store == store && t.Again != "" && words[t.Scenario] != "" {
				again = append(again, words[t.Scenario])
			}
		}
		if len(again) > 0 {
			all = append(all, storeTitles[store]+" ("+strings.Join(again, ", ")+")")
		}
	}
	if len(all) > 0 {
		fmt.Fprintf(w, "\nMeasured again, after the rest: %s.\n", strings.Join(all, "; "))
	}
}

// failures lists the repetitions without figures: the medians are of the others, and would hide them.
func (r *report) failures(w io.Writer) {
	for _, c := range comparisons {
		for _, store := range r.stores() {
			for _, who := range r.shown(store) {
				o, _ := find(r.Tables, store, c.scenario, who.Who)
				if failed, why := o.failed(); failed > 0 {
					fmt.Fprintf(w, "\n**%s** (%s), %s: %d of %d repetitions have no figures: %s.\n", who.title(), storeTitles[store], c.words, failed, len(o.Reps), why)
				}
			}
		}
	}
}

// failed counts the repetitions without figures, and returns why the first one has none.
func (o outcome) failed() (n int, why string) {
	for _, f := range o.Reps {
		if f.Error != "" {
			if n++; n == 1 {
				why = f.Error
			}
		}
	}
	return n, why
}

// stores are those that were measured, in the order of the run.
func (r *report) stores() (all []string) {
	for _, t := range r.Tables {
		if len(all) == 0 || all[len(all)-1] != t.Store {
			all = append(all, t.Store)
		}
	}
	return all
}

// shown are the contestants of a store that users can choose: strategies of hasp, other
// libraries, and the store's own lock used by hand. The first strategy is the default one.
func (r *report) shown(store string) (all []outcome) {
	for _, wanted := range []func(outcome) bool{
		func(o outcome) bool { return o.Role == ours },
		outcome.rival,
	} {
		for _, t := range r.Tables {
			if t.Store != store || t.Scenario != "S1" {
				continue
			}
			for _, o := range t.Outcomes {
				if wanted(o) {
					all = append(all, o)
				}
			}
		}
	}
	return all
}

// rival reports whether a user could take this instead of hasp.
func (o outcome) rival() bool { return o.Role == peer || o.Plain != "" }

// title is the contestant's name on the users' page.
func (o outcome) title() string {
	if o.Plain != "" {
		return o.Plain
	}
	return o.Who
}

// comparisons are the scenarios of the users' page, in its words. Of times less is better, of rates
// more.
var comparisons = []struct {
	scenario, words string
	rate            bool
}{
	{"S1", "lock and unlock alone", false},
	{"S2", "64 names at once", true},
	{"S6", "the next holder", false},
	{"S3-512", "512 clients", true},
}

// rivalsWin lists where a rival beats the default strategy, or the strategy of the same floor, by
// more than 5 % in all repetitions alike, with the reason; and then where it does so in the median of
// repetitions that disagree.
func (r *report) rivalsWin(w io.Writer) {
	found := false
	var unclear []string
	for _, store := range r.stores() {
		all := r.shown(store)
		for _, rival := range all {
			if !rival.rival() {
				continue
			}
			wins, disagree := r.wins(store, rival, counterpart(all, rival))
			for _, words := range disagree {
				unclear = append(unclear, fmt.Sprintf("%s (%s), %s", rival.title(), storeTitles[store], words))
			}
			if len(wins) == 0 {
				continue
			}
			found = true
			fmt.Fprintf(w, "- **%s** (%s): %s. %s.\n", rival.title(), storeTitles[store], strings.Join(wins, "; "), rivalReasons[store+"/"+rival.Who])
		}
	}
	if !found {
		fmt.Fprint(w, "Nowhere in this run.\n")
	}
	if len(unclear) > 0 {
		fmt.Fprintf(w, "\nFaster in the median of repetitions that disagree: %s.\n", strings.Join(unclear, "; "))
	}
}

// counterpart is the strategy of hasp that a rival is compared with: the one that is built on the same
// thing, or else the default.
func counterpart(all []outcome, rival outcome) outcome {
	for _, o := range all {
		if o.Role == ours && rival.Plain != "" && o.Floor == rival.Who {
			return o
		}
	}
	return all[0]
}

// wins are the comparisons in which the rival is better, and the words of those in which only the median says so.
func (r *report) wins(store string, rival, our outcome) (all, disagree []string) {
	for _, c := range comparisons {
		mine, found := find(r.Tables, store, c.scenario, our.Who)
		theirs, alsoFound := find(r.Tables, store, c.scenario, rival.Who)
		if !found || !alsoFound {
			continue
		}
		value, unit := func(f figures) float64 { return f.P50 }, duration
		better := func(s span) bool { return s.Median > 1.05 }
		if c.rate {
			value, unit = func(f figures) float64 { return f.Rate }, perSecondText
			better = func(s span) bool { return s.Median < 0.95 }
		}
		switch s := ratio(mine, theirs, value); {
		case s == nil || !better(*s):
		case !s.agrees():
			disagree = append(disagree, c.words)
		default:
			text := fmt.Sprintf("%s %s where %s has %s", c.words, unit(value(theirs.Median)), our.Who, unit(value(mine.Median)))
			if theirs.Median.Jain > 0 {
				text += fmt.Sprintf(" (fairness %s and %s)", fairnessText(theirs.Median.Jain), fairnessText(mine.Median.Jain))
			}
			all = append(all, text)
		}
	}
	return all, disagree
}

// duration prints microseconds as people say them.
func duration(us float64) string {
	d := time.Duration(us * 1e3)
	switch {
	case us == 0:
		return "-"
	case d < 10*time.Microsecond:
		return fmt.Sprintf("%.1f µs", us)
	case d < time.Millisecond:
		return fmt.Sprintf("%.0f µs", us)
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.2f ms", us/1e3) // two figures that differ by 5 % read differently
	case d < time.Second:
		return fmt.Sprintf("%.0f ms", us/1e3)
	}
	return fmt.Sprintf("%.1f s", us/1e6)
}

// perSecondText prints a rate with commas.
func perSecondText(v float64) string {
	if v == 0 {
		return "-"
	}
	if v < 10 {
		return fmt.Sprintf("%.1f/s", v)
	}
	return thousands(v) + "/s"
}

func thousands(v float64) string {
	digits := fmt.Sprintf("%.0f", v)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

func fairnessText(v float64) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", v)
}
