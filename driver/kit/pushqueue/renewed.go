package pushqueue

import "slices"

// Known is the state that a session has of its entries when it sends a renewal, for stores that
// renew all entries at once and answer how many there are. The comparison finds an entry that
// another client removed, and an orphan that a late request has made after its ticket left.
type Known[E any] struct {
	confirmed, others []*Ticket[E]
	seqs              uint64 // those of the confirmed, folded by exclusive or
}

// Known returns the present state.
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

// Agrees reports whether the number of entries and the exclusive or of their Seqs are those of
// the known entries. Requests under way make them differ for a moment, at the price of a list.
func (k Known[E]) Agrees(entries int64, seqs uint64) bool {
	return entries == int64(len(k.confirmed)) && seqs == k.seqs
}

// Except leaves these out: whether their entries are among those that the store has
// counted is not known.
func (k Known[E]) Except(tickets []*Ticket[E]) Known[E] {
	if len(tickets) == 0 {
		return k
	}
	without := map[*Ticket[E]]bool{}
	for _, t := range tickets {
		without[t] = true
	}
	all := k.confirmed
	k.confirmed, k.others = nil, slices.Clone(k.others)
	for _, t := range all {
		if without[t] {
			k.others, k.seqs = append(k.others, t), k.seqs^t.seq
		} else {
			k.confirmed = append(k.confirmed, t)
		}
	}
	return k
}

// Renewed takes the result of a renewal. where is the server that answered, "" if that is unknown.
// there are the names of the entries by ID, nil if Agrees has reported true. It reports missing
// entries to the core, and returns the orphans, which the driver removes. An ID that was
// registered since Known, or is leaving, is neither missing nor an orphan.
//
// A server without the entry that a Leave removes may have forgotten it: it may be a replica that
// was promoted without the last commits. So each ticket knows where its entry was made, or was
// seen since by a renewal that knew the ticket. Another renewal does not count: an entry that was
// registered since Known may have been made elsewhere.
func (s *Session[E]) Renewed(k Known[E], where string, there map[string]string) (orphans map[string]string) {
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
		orphans = make(map[string]string)
		for id, name := range there {
			if s.tickets[id] == nil {
				orphans[id] = name
			}
		}
		for _, all := range [][]*Ticket[E]{k.confirmed, k.others} {
			for _, t := range all {
				delete(orphans, t.Request.ID) // some have left since
			}
		}
	}
	s.Unlock()
	s.Missing(missing)
	return orphans
}

// Begun notes on which server the session was made.
func (s *Session[E]) Begun(where string) {
	s.Lock()
	defer s.Unlock()
	s.where = &where
}

// ElsewhereThan reports that an answer from there says nothing about the entry: the entry was made
// and last seen on another server, or the server is unknown. It is for tickets whose request was
// sent.
func (t *Ticket[E]) ElsewhereThan(there string) bool {
	t.session.Lock()
	defer t.session.Unlock()
	return there == "" || *t.where != there
}
