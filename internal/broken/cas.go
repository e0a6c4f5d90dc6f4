package broken

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hasplock/hasp/caslock"
	"github.com/hasplock/hasp/driver"
)

// CASControl is package caslock on a store in memory that has one flaw.
type CASControl struct {
	Name string
	Flaw CASFlaw
	Seen []string // by each of these tests of package drivertest, as THEME/TEST
}

// CASControls are all of them.
func CASControls() []CASControl {
	return []CASControl{
		{Name: "deletes without a condition", Flaw: CASFlaw{deletesAny: true}, Seen: []string{"Retention/Sweep"}},
		{Name: "uses a version again after a delete", Flaw: CASFlaw{countsAnew: true}, Seen: []string{"Retention/Sweep"}},
		{
			Name: "tells of one change and no other", // the record as it is when the watch stands
			Flaw: CASFlaw{tells: func(told int, _, _ caslock.Record) bool { return told == 0 }},
			Seen: []string{"Contract/Watch", "Contract/ChangeDuringWait"},
		},
		{
			Name: "tells of no release",
			Flaw: CASFlaw{tells: func(told int, _, now caslock.Record) bool { return told == 0 || now.ID != "" }},
			Seen: []string{"Contract/Watch", "Contract/ChangeDuringWait"},
		},
		{
			Name: "tells of no value",
			Flaw: CASFlaw{tells: func(_ int, last, now caslock.Record) bool { return last.ID != now.ID }},
			Seen: []string{"Contract/Watch"},
		},
		{Name: "tells of changes in the wrong order", Flaw: CASFlaw{oldLast: true}, Seen: []string{"Contract/WatchOrder"}},
		{Name: "sends a write that has failed again and again", Flaw: CASFlaw{repeats: true}, Seen: []string{"Cost/OneNameFails"}},
		{Name: "renews all again while one fails", Flaw: CASFlaw{renewal: renewsAgain}, Seen: []string{"Cost/OneNameFails"}},
		{Name: "counts one that fails as all", Flaw: CASFlaw{renewal: failsWhole}, Seen: []string{"Cost/OneNameFails", "Cost/OneNameHangs"}},
	}
}

// CASFlaw describes how such a store differs from a correct one.
type CASFlaw struct {
	deletesAny bool                                          // Delete looks at no version
	countsAnew bool                                          // the version of a record that was deleted begins with one again
	tells      func(told int, last, now caslock.Record) bool // a watch tells of this change; nil: of each
	oldLast    bool                                          // a watch tells of the change before this one after it
	repeats    bool                                          // a write that fails is sent again, hardly later
	renewal    func(ctx context.Context, s driver.Session) (time.Duration, error)
}

// CASStore is a store in memory for package caslock. The flaw of none is a store without a flaw.
type CASStore struct {
	flaw      CASFlaw
	retention time.Duration

	mu       sync.Mutex
	revision uint64
	records  map[string]casRecord
	changed  chan struct{} // closed at the next write; made in the fake time of the test
}

type casRecord struct {
	caslock.Record
	version uint64
}

// Store makes one, whose drivers keep free records for a retention.
func (f CASFlaw) Store(retention time.Duration) *CASStore {
	return &CASStore{flaw: f, retention: retention, records: map[string]casRecord{}}
}

// Open is a connection to it.
func (s *CASStore) Open() driver.Backend {
	return caslock.New(s, &caslock.Options{Retention: s.retention})
}

func (s *CASStore) String() string { return "memory" }

// Close does nothing: the store is a value.
func (s *CASStore) Close() error { return nil }

// Number makes it a store whose versions are numbers.
func (s *CASStore) Number(v caslock.Version) (uint64, error) {
	return strconv.ParseUint(string(v), 10, 64)
}

func (r casRecord) v() caslock.Version {
	if r.version == 0 {
		return caslock.Absent
	}
	return caslock.Version(strconv.FormatUint(r.version, 10))
}

// Load reads a record.
func (s *CASStore) Load(ctx context.Context, name string) (caslock.Record, caslock.Version, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.records[name]
	return r.Record, r.v(), ctx.Err()
}

// Swap replaces a record that has this version.
func (s *CASStore) Swap(ctx context.Context, r caslock.Record, old caslock.Version) (caslock.Version, error) {
	r, err := caslock.Decode(r.Encode())
	if err != nil || ctx.Err() != nil {
		return caslock.Absent, context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.records[r.Name]
	if before.v() != old {
		return caslock.Absent, caslock.ErrConflict
	}
	s.revision++
	now := casRecord{r, s.revision}
	if s.flaw.countsAnew {
		now.version = before.version + 1
	}
	s.records[r.Name] = now
	s.tellLocked()
	return now.v(), nil
}

func (s *CASStore) tellLocked() {
	if s.changed != nil {
		close(s.changed)
	}
	s.changed = nil
}

// List yields all records.
func (s *CASStore) List(ctx context.Context, prefix string, yield func(caslock.Record, caslock.Version) bool) error {
	s.mu.Lock()
	var all []casRecord
	for name, r := range s.records {
		if strings.HasPrefix(name, prefix) {
			all = append(all, r)
		}
	}
	s.mu.Unlock()
	for _, r := range all {
		if !yield(r.Record, r.v()) {
			break
		}
	}
	return ctx.Err()
}

// Delete removes a record that has this version. Some of these requests arrive late: their caller
// has gone, and the name may have been taken meanwhile.
func (s *CASStore) Delete(ctx context.Context, name string, old caslock.Version) error {
	answer := make(chan error, 1) // one slot: the caller may have gone
	go func() {
		time.Sleep(rand.N(s.retention / 4))
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.records[name].v() != old && !s.flaw.deletesAny {
			answer <- caslock.ErrConflict
			return
		}
		delete(s.records, name)
		s.tellLocked()
		answer <- nil
	}()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Watch tells of the record as it is, and of every change.
func (s *CASStore) Watch(ctx context.Context, name string, changed func(caslock.Record, caslock.Version)) error {
	var last casRecord
	for told := 0; ; {
		s.mu.Lock()
		now := s.records[name]
		if s.changed == nil {
			s.changed = make(chan struct{})
		}
		news := s.changed
		s.mu.Unlock()
		if told == 0 || now.version != last.version {
			if s.flaw.tells == nil || s.flaw.tells(told, last.Record, now.Record) {
				changed(now.Record, now.v())
			}
			if told > 0 && s.flaw.oldLast {
				changed(last.Record, last.v())
			}
			last = now
			told++
		}
		select {
		case <-news:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
