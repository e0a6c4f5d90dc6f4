package keyvalue

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

// Server is a key-value server over HTTP, in memory: what stands for the store that you have. GET
// and PUT /values?key=K read and write a value, whose version is its ETag; PUT takes the conditions
// If-Match and If-None-Match: *. GET /values?prefix=P has all values whose key begins with P.
type Server struct {
	mu     sync.Mutex
	writes int
	values map[string]Item
}

// Item is a value as a list has it.
type Item struct {
	Version string
	Value   []byte
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	value, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20)) // before the lock: a slow client keeps nothing
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	query := r.URL.Query()
	key := query.Get("key")
	old, found := s.values[key]
	switch {
	case r.Method == http.MethodGet && query.Has("prefix"):
		all := []Item{}
		for key, item := range s.values {
			if strings.HasPrefix(key, query.Get("prefix")) {
				all = append(all, item)
			}
		}
		json.NewEncoder(w).Encode(all)
	case r.Method == http.MethodGet && !found:
		w.WriteHeader(http.StatusNotFound)
	case r.Method == http.MethodGet:
		w.Header().Set("ETag", old.Version)
		w.Write(old.Value)
	case r.Method != http.MethodPut:
		w.WriteHeader(http.StatusMethodNotAllowed)
	case r.Header.Get("If-None-Match") == "*" && found, r.Header.Get("If-Match") != "" && r.Header.Get("If-Match") != old.Version:
		w.WriteHeader(http.StatusPreconditionFailed)
	default:
		if s.values == nil {
			s.values = map[string]Item{}
		}
		s.writes++
		s.values[key] = Item{strconv.Quote(strconv.Itoa(s.writes)), value}
		w.Header().Set("ETag", s.values[key].Version)
	}
}
