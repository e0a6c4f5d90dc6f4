package linear

import (
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/hasplock/hasp/internal/history"
)

const defaultLimit = 20 * time.Second

// Linearizable finds locks whose record no order of single steps explains. The steps are:
//
//   - grant: there is room for the claim, and where all grants have tokens, it is the
//     next in order of tokens. Somewhere between call and return.
//   - end: the lock is held by this operation. For a successful release, somewhere
//     between its call and return. For every other hold, at any time after its last
//     certain moment: it may expire whenever the store likes.
//   - with strictBusy, busy: a client holds the lock. Between call and return.
//
// An acquire of unknown outcome is no step: in any case it can only have kept others out, and no
// check here requires that a client be let in. But a busy answer after it proves nothing and is
// left out.
//
// With tokens, histories of any length are checked at about 100,000 operations a second.
// Without them the order of grants has to be searched for: that is fine for a mutex, slow
// for semaphores, and hopeless for more than some hundred operations of readers, which
// may come in any order.
//
// The answer is sought for at most limit for each lock (0: 20 s), and as long again for
// the words in which to name a violation. If there was no answer, the lock is among the
// violations as undecided, so that no test passes unchecked.
func Linearizable(h history.History, strictBusy bool, limit time.Duration) []history.Violation {
	if limit <= 0 {
		limit = defaultLimit
	}
	return history.EachName(h, "linearizability", func(c *history.CheckRun, ops []*history.Operation) {
		deadline := time.Now().Add(limit)
		for _, part := range split(steps(ops, strictBusy), partSize) {
			if !decide(c, part, time.Until(deadline)) {
				return // what follows builds on what could not be explained
			}
		}
	})
}

// decide checks one part of a lock's steps and reports whether they were explained.
func decide(c *history.CheckRun, p part, left time.Duration) bool {
	m := p.model()
	switch porcupine.CheckOperationsTimeout(m, p.operations(), max(left, 1)) {
	case porcupine.Ok:
		return true
	case porcupine.Unknown:
		c.Report(nil, "undecided: no answer about %d steps within the time limit; check a shorter history", len(p.steps))
		return false
	}
	// Asked again with the search recorded, which costs too much to do for every history.
	_, info := porcupine.CheckOperationsVerbose(m, p.operations(), max(left, time.Second))
	p.explain(c, info)
	return false
}

// explain accuses the step that the longest explanation of the record had to leave out.
func (p part) explain(c *history.CheckRun, info porcupine.LinearizationInfo) {
	var longest []int
	for _, sequences := range info.PartialLinearizations() {
		for _, s := range sequences {
			if len(s) > len(longest) {
				longest = s
			}
		}
	}
	s, placed := p.initial, map[int]bool{}
	for _, i := range longest {
		_, s = s.apply(p.steps[i])
		placed[i] = true
	}
	// The search failed at the first of the remaining steps.
	var stuck *step
	for i := range p.steps {
		if !placed[i] && (stuck == nil || p.steps[i].to < stuck.to) {
			stuck = &p.steps[i]
		}
	}
	holders := slices.Clone(s.holders)
	c.Report(append([]*history.Operation{stuck.op}, holders...), "after %d of %d steps nothing explains this %s%s",
		len(longest), len(p.steps), stuck.kind, ours(holders))
}

func ours(holders []*history.Operation) string {
	if len(holders) == 0 {
		return ": no client holds"
	}
	ids := make([]string, len(holders))
	for i, o := range holders {
		ids[i] = o.ID
	}
	return ", held by " + strings.Join(ids, ", ")
}
