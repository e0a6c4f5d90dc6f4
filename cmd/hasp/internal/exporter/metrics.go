package exporter

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// metric is a family of series, all with the label store.
type metric struct {
	name, kind, help string
	of               string // a second label, or ""
}

// The families, in the order in which they are written. docs/METRICS.md has the same table. Those
// of a queue up to oldestWaiter are promhasp.Queues' as well.
var (
	queueUp      = &metric{"hasp_queue_up", "gauge", "1 if the queue could be read.", "name"}
	queueHolders = &metric{"hasp_queue_holders", "gauge", "Entries that hold the lock.", "name"}
	queueWaiters = &metric{"hasp_queue_waiters", "gauge", "Entries that wait for the lock.", "name"}
	oldestWaiter = &metric{"hasp_queue_oldest_waiter_seconds", "gauge", "How long the first in line has waited, by its own clock.", "name"}
	oldestHolder = &metric{"hasp_queue_oldest_holder_seconds", "gauge", "How long ago the oldest holder asked for the lock, by its own clock.", "name"}
	heldFor      = &metric{"hasp_queue_held_seconds", "gauge", "For how long the exporter has seen one and the same entry hold the lock.", "name"}
	lastEviction = &metric{"hasp_queue_last_eviction_timestamp_seconds", "gauge", "When an operator last took the lock away, by the operator's clock.", "name"}
	quarantine   = &metric{"hasp_quarantine_seconds", "gauge", "For how long the store grants nothing yet, because it may have forgotten locks.", ""}
	names        = &metric{"hasp_exporter_names", "gauge", "Names that are in use and begin with the prefix.", ""}
	leftOut      = &metric{"hasp_exporter_names_left_out", "gauge", "Of these, the names beyond the limit, which are not read.", ""}
	success      = &metric{"hasp_exporter_success", "gauge", "1 if everything could be read in time.", ""}
	duration     = &metric{"hasp_exporter_duration_seconds", "gauge", "How long the reading took.", ""}

	families = []*metric{
		queueUp, queueHolders, queueWaiters, oldestWaiter, oldestHolder, heldFor, lastEviction,
		quarantine, names, leftOut, success, duration,
	}
)

// page is the answer to one scrape.
type page struct {
	store   string
	samples map[*metric][]sample
}

type sample struct {
	label string // the value of metric.of
	value float64
}

func newPage(store string) *page { return &page{store, map[*metric][]sample{}} }

func (p *page) add(m *metric, label string, value float64) {
	p.samples[m] = append(p.samples[m], sample{label, value})
}

// text is the page in Prometheus's text format, version 0.0.4.
func (p *page) text() []byte {
	var b []byte
	for _, m := range families {
		if len(p.samples[m]) == 0 {
			continue
		}
		b = append(b, "# HELP "+m.name+" "+m.help+"\n# TYPE "+m.name+" "+m.kind+"\n"...)
		for _, s := range p.samples[m] {
			b = append(b, m.name+`{store="`+escape(p.store)+`"`...)
			if m.of != "" {
				b = append(b, ","+m.of+`="`+escape(s.label)+`"`...)
			}
			b = append(b, "} "...)
			b = append(strconv.AppendFloat(b, s.value, 'g', -1, 64), '\n')
		}
	}
	return b
}

var escaper = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// escape makes a label's value of a text. Prometheus takes no other text than UTF-8.
func escape(s string) string { return escaper.Replace(strings.ToValidUTF8(s, "�")) }

// choose keeps the first of many names in the order of the alphabet: which are left out beyond a
// limit must not change from one scrape to the next as long as the names do not. Two names that
// Prometheus cannot tell apart would have it refuse the whole page. count is how many there were,
// each once.
func choose(names []string, most int) (chosen []string, count int) {
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(strings.Compare(escape(a), escape(b)), strings.Compare(a, b)) })
	names = slices.Compact(names) // a store may list a name twice
	count = len(names)
	names = slices.CompactFunc(names, func(a, b string) bool { return escape(a) == escape(b) })
	return names[:min(len(names), most)], count
}
