package serve

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/serve/access"
	"github.com/hasplock/hasp/cmd/hasp/internal/serve/audit"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
)

// abilities lists what a backend or a ticket can.
func abilities(x any) []string {
	can := []string{}
	add := func(ok bool, what string) {
		if ok {
			can = append(can, what)
		}
	}
	add(is[driver.Namer](x), httpapi.Names)
	add(is[driver.Evicter](x), httpapi.Evict)
	add(is[driver.Watcher](x), httpapi.Watch)
	add(is[driver.Quarantiner](x), httpapi.Quarantine)
	add(is[driver.Diagnoser](x), httpapi.Diagnose)
	add(is[driver.Publisher](x), httpapi.Publish)
	add(is[driver.Downgrader](x), httpapi.Downgrade)
	add(is[driver.Adopter](x), httpapi.Adopt)
	return can
}

func is[T any](x any) bool {
	_, ok := x.(T)
	return ok
}

func (s *Server) queue(c *call, name string) (any, error) {
	limit, err := c.number("limit", httpapi.MostEntries)
	if err != nil {
		return nil, err
	}
	after, err := c.number("after", 0)
	if err != nil {
		return nil, err
	}
	most := int(min(limit, httpapi.MostEntries))
	if most == 0 {
		most = httpapi.MostEntries
	}
	read := most + 1 // one more than is shown tells whether there are others
	if after > 0 {
		read = 0 // how many come before is not known
	}
	entries, err := s.o.Store.List(c.ctx(), name, read)
	if err != nil {
		return nil, err
	}
	answer := httpapi.Queue{Entries: []httpapi.Entry{}}
	for _, e := range entries {
		if after > 0 && e.Seq <= after {
			continue
		}
		if answer.More = len(answer.Entries) == most; answer.More {
			break
		}
		answer.Entries = append(answer.Entries, httpapi.EntryOf(e))
	}
	return answer, nil
}

// names lists those that the token may look at.
func (s *Server) names(c *call) (any, error) {
	n, ok := s.o.Store.(driver.Namer)
	if !ok {
		return nil, unsupported("cannot list its names")
	}
	if !c.holder.MayAnywhere(access.Look) {
		return nil, c.may(access.Look, c.q.URL.Query().Get("prefix"))
	}
	all := []string{}
	err := n.Names(c.ctx(), c.q.URL.Query().Get("prefix"), func(name string) bool {
		if c.holder.May(access.Look, name) {
			all = append(all, name)
		}
		return true
	})
	return orError(httpapi.NameList{Names: all}, err)
}

// beat is how often a watch says that it stands, so that its client can tell silence from a dead
// network.
const beat = 5 * time.Second

// watch writes a line for each change: "changed", and "alive" when there was none for a while. The
// first one says that the watch stands.
func (s *Server) watch(c *call, name string) (any, error) {
	w, ok := s.o.Store.(driver.Watcher)
	if !ok {
		return nil, unsupported("cannot follow a name")
	}
	release, err := s.admitWatch(c.holder)
	if err != nil {
		return nil, err
	}
	defer release()
	ctx, cancel := context.WithCancel(c.q.Context())
	defer cancel()
	defer context.AfterFunc(s.standing(), cancel)()
	changed, ended := make(chan struct{}, 1), make(chan error, 1) // one change that is not told yet stands for all
	go func() {
		ended <- w.Watch(ctx, name, func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	}()
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for stands := false; ; {
		line := "alive\n"
		select {
		case <-changed:
			line = "changed\n"
		case <-tick.C:
			if !stands {
				continue
			}
		case err := <-ended:
			if !stands {
				return nil, err
			}
			return written, nil // the end of the answer says that the watch is broken
		}
		if err := c.writeLine(line, !stands); err != nil {
			cancel()
			<-ended
			return written, nil
		}
		stands = true
	}
}

// writeLine writes a line of an answer that goes on.
func (c *call) writeLine(line string, first bool) error {
	if first {
		c.w.Header().Set("Content-Type", "text/plain")
		c.w.Header().Set("X-Accel-Buffering", "no") // nginx would keep lines back
		c.w.WriteHeader(http.StatusOK)
	}
	_ = c.allow(beat)
	if _, err := io.WriteString(c.w, line); err != nil {
		return err
	}
	return http.NewResponseController(c.w).Flush()
}

func (s *Server) evict(c *call) (any, error) {
	var in httpapi.EvictEntry
	if err := c.decode(&in); err != nil {
		return nil, err
	}
	if err := driver.CheckName(in.Name); err != nil {
		return nil, httpapi.NewProblem(httpapi.Invalid, err.Error())
	}
	if in.Entry = httpapi.Named(in.Entry, in.FromSession, in.FromLock); in.Entry == "" {
		return nil, httpapi.NewProblem(httpapi.Invalid, "entry is missing: the id that GET /v1/queue shows")
	}
	if len(in.Note) > largestNote || !driver.ValidText(in.Note) {
		return nil, httpapi.NewProblem(httpapi.Invalid, fmt.Sprintf("note has at most %d bytes, and no NUL", largestNote))
	}
	if httpapi.Owns(in.Entry, in.FromSession, in.FromLock) {
		// A client that moves gives up its own places. That is nothing for the store to show as
		// taken away: a token without the right to operate could write there what it likes.
		why := hasp.Eviction{By: c.owner("", ""), Why: "given up by its own client"}
		return nil, s.takeAway(c.ctx(), c.holder, in.Name, in.Entry, why, "")
	}
	if err := c.may(access.Operate, in.Name); err != nil {
		return nil, err
	}
	why, note := s.eviction(c, in), in.Note
	if note != "" && (c.holder != s.everyone || why.Why == note) {
		note = noteOf(why)
	}
	return nil, s.takeAway(c.ctx(), c.holder, in.Name, in.Entry, why, note)
}

const largestNote = 4096

// eviction is the record of one: what the client says of itself is marked as in owner.
func (s *Server) eviction(c *call, in httpapi.EvictEntry) (e hasp.Eviction) {
	if json.Unmarshal([]byte(in.Note), &e) != nil {
		e = hasp.Eviction{By: c.owner("", ""), Why: in.Note}
	}
	if e.ID = in.Entry; e.At.IsZero() {
		e.At = time.Now()
	}
	if c.holder != s.everyone {
		e.By.Via = c.holder.Name
	}
	return e
}

// noteOf writes a record, with as much of the reason as the store has room for.
func noteOf(e hasp.Eviction) string {
	for {
		text, _ := json.Marshal(e) // strings
		if len(text) <= largestNote || e.Why == "" {
			return string(text)
		}
		e.Why = strings.ToValidUTF8(e.Why[:max(0, len(e.Why)-(len(text)-largestNote))], "")
	}
}

// takeAway evicts an entry for a holder. The store keeps the note, unless that is empty.
func (s *Server) takeAway(ctx context.Context, h *access.Holder, name, entry string, why hasp.Eviction, note string) error {
	e, ok := s.o.Store.(driver.Evicter)
	if !ok {
		return unsupported("cannot take a lock away")
	}
	err := e.Evict(ctx, name, entry, note)
	if err == nil {
		s.o.Audit.Write(audit.Line{Event: audit.Eviction, Name: name, Who: why.By, Client: h.Name, Entry: entry, Reason: why.Why})
	}
	return err
}

func (s *Server) lastEviction(c *call, name string) (any, error) {
	r, ok := s.o.Store.(driver.Evicter)
	if !ok {
		return nil, unsupported("keeps no record of evictions")
	}
	note, err := r.LastEviction(c.ctx(), name)
	return orError(httpapi.Text{Text: note}, err)
}

func (s *Server) quarantine(c *call, name string) (any, error) {
	q, ok := s.o.Store.(driver.Quarantiner)
	if !ok {
		return httpapi.Closed{}, nil
	}
	left, err := q.Quarantine(c.ctx(), name)
	return orError(httpapi.Closed{Quarantine: left.Milliseconds()}, err)
}

// doctor examines the store.
func (s *Server) doctor(c *call) (any, error) {
	if err := c.may(access.Operate, ""); err != nil {
		return nil, err
	}
	all := []driver.Finding{{Level: driver.Info, Subject: "served", Text: "by hasp serve over " + s.o.Store.String()}}
	d, ok := s.o.Store.(driver.Diagnoser)
	if !ok {
		return httpapi.Findings{Findings: all}, nil
	}
	found, err := d.Diagnose(c.ctx())
	return orError(httpapi.Findings{Findings: append(all, found...)}, err)
}

// warnings has what breaks a promise: everybody who relies on a lock should know.
func (s *Server) warnings(c *call) (any, error) {
	w, ok := s.o.Store.(driver.Diagnoser)
	if !ok {
		return httpapi.Findings{Findings: []driver.Finding{}}, nil
	}
	found, err := w.Warnings(c.ctx())
	if found == nil {
		found = []driver.Finding{}
	}
	return orError(httpapi.Findings{Findings: found}, err)
}
