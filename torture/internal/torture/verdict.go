//go:build unix

package torture

import (
	"fmt"
	"time"

	"github.com/hasplock/hasp/internal/history"
)

// Verdict has the results of a run. All numbers but those of Control are of the names that hasp
// locks.
type Verdict struct {
	Store     string  `json:"store"`
	Adapter   string  `json:"adapter,omitempty"` // the lock under test; "": hasp's
	Seed      uint64  `json:"seed"`
	Kinds     []Kind  `json:"faults_asked"`
	Seconds   float64 `json:"seconds"`
	Processes int     `json:"processes"`
	Names     int     `json:"names"`
	TTL       float64 `json:"ttl_s"` // as granted

	Acquisitions int            `json:"acquisitions"`
	Unanswered   int            `json:"acquisitions_without_answer"`
	Planned      int            `json:"faults_planned"`
	Faults       map[Kind]Count `json:"faults"`
	Hits         int            `json:"hits"` // faults that came upon a holder
	Losses       int            `json:"losses"`
	ToldLate     int            `json:"losses_told_late"` // after the next grant, of a process that ran

	Overlaps   Overlaps  `json:"overlaps"`
	LostPlain  uint64    `json:"lost_updates_unfenced"`
	LostFenced uint64    `json:"lost_updates_fenced"`
	Writes     uint64    `json:"writes"`
	Refused    uint64    `json:"writes_refused_by_fence"`
	Fencing    bool      `json:"fencing"` // the store gives tokens
	FalseEnds  int       `json:"false_released"`
	Stuck      []string  `json:"stuck"`           // names, each with the reason
	Orphans    *int      `json:"orphans"`         // null: the store cannot say
	Inversions *int      `json:"fifo_inversions"` // null: no order is promised, or none could be tried
	Ordered    bool      `json:"fifo"`            // an order is promised
	Margins    []float64 `json:"-"`               // seconds, ascending: from a loss told to the next grant
	MarginMin  *float64  `json:"margin_min_s"`    // null: no loss of a process that ran
	MarginMid  *float64  `json:"margin_median_s"`
	HandOver   *float64  `json:"slowest_hand_over_s"` // from a release to the waiter's grant; null: none without a fault

	Control Control `json:"control"`

	Deaths      []string `json:"workers_died"`             // of no fault of the plan
	AdapterEnds int      `json:"adapters_ended,omitempty"` // by themselves
	AdapterEnd  string   `json:"adapter_end,omitempty"`    // why, the last one
	Undisturbed int      `json:"undisturbed"`              // acquisitions whose holder nothing disturbed
	SlowAnswers int      `json:"slow_answers,omitempty"`   // of adapters, longer than a sixth of the TTL
	Leaks       *int     `json:"leaks,omitempty"`          // unlocks of an adapter after which the lock was taken still
	Releases    int      `json:"releases_tried,omitempty"` // of how many
	TrialFailed string   `json:"trial_failed,omitempty"`   // why this, or the order, was not tried to its end
	KilledAtEnd int      `json:"workers_killed_at_end"`

	Violations []string `json:"violations"`       // in words, the first ones
	Broken     string   `json:"broken,omitempty"` // which promises were
	Result     Result   `json:"verdict"`
	Record     string   `json:"record,omitempty"` // directory of the record, kept where a promise was broken

	enough time.Duration // see Enough
}

// Count counts the faults of one kind.
type Count struct {
	Done int `json:"done"`
	Hits int `json:"hits"`
	Lost int `json:"lost"` // hits by which the lock was lost
}

// Overlaps counts the times that one worked as the holder while another was granted the lock.
type Overlaps struct {
	InFlight int `json:"stopped_or_in_flight"` // it was stopped, or between its last look and the end of the write
	Told     int `json:"told"`                 // it had been told of the loss, and was about to notice
	CutOff   int `json:"cut_off"`              // its connection had ended, which took the lock; it was told in time (connection-bound stores)
	Forgot   int `json:"server_forgot"`        // the server was started anew between the grants, without the first one; where no promise excludes that
	Broken   int `json:"broken"`               // it asked, and was told that it holds; or it ran undisturbed, within its TTL
}

// Control has the results of the naive lock.
type Control struct {
	What         string       `json:"what"`
	Acquisitions int          `json:"acquisitions"`
	Hits         int          `json:"hits"`
	Kinds        map[Kind]int `json:"hits_by_fault"`
	Violations   int          `json:"violations"`
	Lost         uint64       `json:"lost_updates"`
}

// Result is a verdict in one word.
type Result string

// The results.
const (
	Held         Result = "held"         // every promise
	BrokenResult Result = "broken"       // at least one
	Inconclusive Result = "inconclusive" // the control was not caught, or too little could be judged
)

const (
	fewHits        = 20 // faults must have hit a holder before a run says much
	fewUndisturbed = 20 // holds must be judged before a run says anything of an adapter
)

// conclude fills Broken and Result from the rest.
func (v *Verdict) conclude() {
	add := func(yes bool, format string, args ...any) {
		if yes && v.Broken != "" {
			v.Broken += "; "
		}
		if yes {
			v.Broken += fmt.Sprintf(format, args...)
		}
	}
	add(len(v.Violations) > 0, "%d contradictions in the record", len(v.Violations))
	add(v.Overlaps.Broken > 0, "two held at once, %d times", v.Overlaps.Broken)
	add(v.ToldLate > 0, "%d losses were told after another had been granted the lock, to processes that ran", v.ToldLate)
	add(v.LostFenced > 0, "%d updates were lost in spite of the fence", v.LostFenced)
	add(v.FalseEnds > 0, "%d releases reported success after another had been granted the lock", v.FalseEnds)
	add(len(v.Stuck) > 0, "%d names are stuck", len(v.Stuck))
	add(v.Orphans != nil && *v.Orphans > 0, "%d entries have no owner and do not expire", deref(v.Orphans))
	add(v.Inversions != nil && *v.Inversions > 0, "%d waiters were overtaken", deref(v.Inversions))
	add(deref(v.Leaks) > 0 && !v.leaksUnsure(), "%d of %d unlocks left the lock taken", deref(v.Leaks), v.Releases)
	switch {
	case v.Broken != "":
		v.Result = BrokenResult
	case v.Control.Violations == 0, v.Adapter != "" && (v.Undisturbed < fewUndisturbed || v.TrialFailed != "" || v.leaksUnsure()):
		v.Result = Inconclusive
	default:
		v.Result = Held
	}
}

// leaksUnsure reports whether the unlocks that seem to have left the lock taken are so few that an
// adapter which was slow in this run may just have been slow once more.
func (v *Verdict) leaksUnsure() bool {
	leaks := deref(v.Leaks)
	return leaks > 0 && leaks < mostLeaks && v.SlowAnswers > 0
}

func deref(n *int) int {
	if n == nil {
		return 0
	}
	return *n
}

func seconds(d history.Time) float64 { return time.Duration(d).Seconds() }
