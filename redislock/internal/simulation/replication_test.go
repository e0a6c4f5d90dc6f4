package simulation

// replication is a server's part in it.
type replication struct {
	master *server // nil: it is a master
	linked bool    // to its master, whose writes it gets
	lags   bool    // it gets none at present, although it is linked

	replID  string // the history that its data are of
	second  secondID
	offset  int64 // writes of that history
	backlog bool  // it can tell a replica what that has missed
	since   int64 // when it became a master, by its number among all that did
	reigns  int   // grows when it becomes a master or ceases to be one: who waits for its replicas is told
	alone   int64 // since when it has a backlog and no replica; 0: it has one
}

// secondID is the history that a server's own has begun from, and where.
type secondID struct {
	id     string
	offset int64 // of the first write that is not of it
}

var noID = secondID{offset: -1}

// backlogTTL is the default of repl-backlog-ttl, in microseconds.
const backlogTTL = 3600 * 1e6

// connected are the replicas that get each write.
func (s *server) connected() (all []*server) {
	for _, r := range s.world.servers {
		if r.alive && r.master == s && r.linked && !r.lags {
			all = append(all, r)
		}
	}
	return all
}

func (s *server) hasReplicas() bool {
	for _, r := range s.world.servers {
		if r.alive && r.master == s && r.linked {
			return true
		}
	}
	return false
}

// follow brings a replica to its master's state.
func (s *server) follow() {
	for name, n := range s.master.data.streamed {
		if missed := n - s.data.streamed[name]; missed > 0 {
			s.counts[name] += missed
		}
	}
	s.data, s.offset = s.master.data.copy(), s.master.offset
}

// attach makes s a replica of a master, and links it if that lives. Who has replaced that master may
// cease to be one by this, before it is asked again: then it has served on as well.
func (s *server) attach(m *server) {
	s.world.noteOldMaster(m)
	s.unlink()
	s.master, s.lags = m, false
	s.reigns++
	s.link()
}

// link synchronizes a replica: the master sends what it has missed if both are of one history, else
// all.
func (s *server) link() {
	m := s.master
	if !s.alive || !m.alive || m.master != nil || s.linked {
		return
	}
	same := s.replID == m.replID && s.offset <= m.offset || s.replID == m.second.id && s.offset < m.second.offset
	switch {
	case !m.backlog || !same:
		if !m.backlog { // it begins a history that it can tell
			m.replID, m.second, m.backlog = s.world.id(), noID, true
		}
		s.replID, s.second, s.backlog = m.replID, noID, true
		s.data, s.offset = m.data.copy(), m.offset
	default:
		if s.replID != m.replID {
			s.second = secondID{s.replID, s.offset + 1}
			s.replID = m.replID
		}
		s.backlog = true
		s.follow()
	}
	s.linked, m.alone = true, 0
}

// unlink ends all links of a server, to its master and to its replicas.
func (s *server) unlink() {
	if m := s.master; m != nil && s.linked {
		s.linked = false
		m.leftAlone()
	}
	for _, r := range s.world.servers {
		if r.master == s && r.linked {
			r.linked = false
		}
	}
	s.leftAlone()
}

func (s *server) leftAlone() {
	if s.alive && s.backlog && !s.hasReplicas() && s.alone == 0 {
		s.alone = s.now()
	}
}

// reconnect links a server that has started to its master, or its replicas to it.
func (s *server) reconnect() {
	if s.master != nil {
		s.link()
		return
	}
	for _, r := range s.world.servers {
		if r.master == s {
			r.link()
		}
	}
}

// promote makes a replica a master, with a new history.
func (s *server) promote() {
	if s.master == nil {
		return
	}
	s.unlink()
	s.master, s.lags = nil, false
	s.reigns++
	s.world.reigns++
	s.since = s.world.reigns
	s.second = secondID{s.replID, s.offset + 1}
	s.replID, s.backlog, s.alone = s.world.id(), true, s.now()
}

// tick does what a server does by itself: a master that has had no replica for long forgets its
// histories.
func (s *server) tick() {
	if s.alive && s.master == nil && s.alone != 0 && s.now()-s.alone > backlogTTL {
		s.replID, s.second, s.backlog, s.alone = s.world.id(), noID, false, 0
	}
}
