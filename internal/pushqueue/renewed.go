package pushqueue

// Known is what a session knows of its entries when it sends a renewal, for stores that renew
// them all at once and answer how many there are: an entry that somebody removed is missed, and
// one that a late request has made after its ticket left is found.
type Known[E any] struct {
	confirmed, others []*Ticket[E]
	seqs              uint64 // those of the confirmed, folded by exclusive or
}

// Known says what is known now.
func (s *Session[E]) Known() (Known[E], error) {
	s.Lock()
	defer s.Unlock()
	var k Known[E]
	if s.closed {
		return k, ErrClosed
	}
	for _, t := range s.tickets {
		if t.confirmed && !t.left {
			k.confirmed = append(k.confirmed, t)
			k.seqs ^= t.seq
		} else {
			k.others = append(k.others, t)
		}
	}
	return k, nil
}

// Agrees reports whether so many entries, with Seqs that are folded to this, are those that are
// known. Requests under way make it differ for a moment, at the price of a list.
func (k Known[E]) Agrees(entries int64, seqs uint64) bool {
	return entries == int64(len(k.confirmed)) && seqs == k.seqs
}

// Renewed takes note of what a renewal found, and where: "" if that is not to be learnt. there
// are the names of the entries by ID, nil if what is known agrees with what there is. It tells of
// entries that are missing, and returns those that nobody asked for, which the driver removes. An
// ID that came up since Known, or is leaving, is neither.
//
// A server that has no entry to remove may have forgotten it: a replica that was promoted without
// having every commit. So each ticket knows where its entry was made, or was seen since. That is
// the place of a renewal that knew the ticket, and of no other: whatever came up since Known may
// have been entered elsewhere.
func (s *Session[E]) Renewed(k Known[E], where string, there map[string]string) (strays map[string]string) {
	seen := func(t *Ticket[E]) bool {
		_, ok := there[t.Request.ID]
		return there == nil || ok
	}
	var missing []*Ticket[E]
	s.Lock()
	if *s.where != where {
		s.where = &where
	}
	for _, t := range k.confirmed {
		if seen(t) {
			t.where = s.where
		} else {
			missing = append(missing, t)
		}
	}
	if len(there) > 0 {
		strays = make(map[string]string)
		for id, name := range there {
			if s.tickets[id] == nil {
				strays[id] = name
			}
		}
		for _, all := range [][]*Ticket[E]{k.confirmed, k.others} {
			for _, t := range all {
				delete(strays, t.Request.ID) // some have left since
			}
		}
	}
	s.Unlock()
	s.Missing(missing)
	return strays
}

// Begun notes where the session was made.
func (s *Session[E]) Begun(where string) {
	s.Lock()
	defer s.Unlock()
	s.where = &where
}

// ElsewhereThan reports that an answer from there says nothing of the entry, since it was made and
// last seen at another place, or since the place is not to be learnt. It is for tickets whose request
// was sent.
func (t *Ticket[E]) ElsewhereThan(there string) bool {
	t.session.Lock()
	defer t.session.Unlock()
	return there == "" || *t.where != there
}
