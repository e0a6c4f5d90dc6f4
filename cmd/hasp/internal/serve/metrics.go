package serve

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// measured counts what the server has done.
type measured struct {
	expired    atomic.Int64
	panics     atomic.Int64
	unaccepted atomic.Int64
	strangers  atomic.Int64

	mu       sync.Mutex
	requests map[answered]int64
}

// answered is a kind of answer. There are no more of them than routes and statuses, also if other
// paths are asked for.
type answered struct {
	route  string
	status int
}

func (m *measured) request(route string, status int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.requests == nil {
		m.requests = map[answered]int64{}
	}
	m.requests[answered{route, status}]++
}

// metrics writes Prometheus's text format, as package exporter does, and for its reason.
func (s *Server) metrics(c *call) (any, error) {
	var all usage
	s.mu.Lock()
	for _, u := range s.usage {
		all.sessions += u.sessions
		all.locks += u.locks
		all.waiting += u.waiting
	}
	s.mu.Unlock()
	var b strings.Builder
	one := func(name, kind, help string, value int64) {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n%s %d\n", name, help, name, kind, name, value)
	}
	one("hasp_serve_sessions", "gauge", "Sessions of clients.", int64(all.sessions))
	one("hasp_serve_locks", "gauge", "Locks that are held or waited for.", int64(all.locks))
	one("hasp_serve_waiting", "gauge", "Locks that are waited for.", int64(all.waiting))
	one("hasp_serve_sessions_ended_total", "counter", "Sessions that the store has ended, or that were not kept alive.", s.measured.expired.Load())
	one("hasp_serve_panics_total", "counter", "Faults of the program that have cost an answer.", s.measured.panics.Load())
	one("hasp_serve_accept_errors_total", "counter", "Connections that could not be accepted.", s.measured.unaccepted.Load())
	one("hasp_serve_strangers_closed_total", "counter", "Connections that were closed because too many had shown no token.", s.measured.strangers.Load())
	if s.o.Audit != nil {
		one("hasp_serve_audit_missing_total", "counter", "Lines that the audit lacks, because its disk was too slow or full.", s.o.Audit.Missing.Load())
	}
	const requests = "hasp_serve_requests_total"
	fmt.Fprintf(&b, "# HELP %s Requests by route and status.\n# TYPE %s counter\n", requests, requests)
	s.measured.mu.Lock()
	keys := slices.SortedFunc(maps.Keys(s.measured.requests), func(a, b answered) int {
		return cmp.Or(cmp.Compare(a.route, b.route), cmp.Compare(a.status, b.status))
	})
	for _, k := range keys {
		fmt.Fprintf(&b, "%s{route=%q,status=\"%d\"} %d\n", requests, k.route, k.status, s.measured.requests[k])
	}
	s.measured.mu.Unlock()
	c.w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = c.w.Write([]byte(b.String())) // to a scraper that may have gone
	return written, nil
}
