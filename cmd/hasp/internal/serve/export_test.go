package serve

// ProbeAnswer is how long a server has to say that it is there.
const ProbeAnswer = probeAnswer

// Parked counts the connections that net/http does not have at the moment.
func (s *Server) Parked() int {
	s.parking.mu.Lock()
	defer s.parking.mu.Unlock()
	return len(s.parking.all)
}
