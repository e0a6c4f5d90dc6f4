package serve

// Parked counts the connections that net/http does not have at the moment.
func (s *Server) Parked() int {
	s.parking.mu.Lock()
	defer s.parking.mu.Unlock()
	return len(s.parking.all)
}
