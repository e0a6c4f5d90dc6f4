package httplock

import (
	"cmp"
	"errors"
)

// An exported lock is not adopted when its session moves: it would get another name in the store,
// and the importer has the text with this one. It stays in the session that the server has
// forgotten, or is about to, for what is left of its time, as if the exporter had died. It is not
// evicted, and that session is not closed, which would let another client in before the importer.

var errMoving = errors.New("the lock passes from one server to another at this moment: try again")

// ExportedID implements driver.Exporter. While the lock is being adopted it is not known which of
// its two names the store has.
func (a adopter) ExportedID() (string, error) {
	t := a.t
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	if t.to.number != 0 {
		return "", errMoving
	}
	t.exported = true
	return cmp.Or(t.at.entry, t.r.ID), nil
}

// leftExports reports that exported locks were left in a session.
func (s *session) leftExports(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.exports == id
}
