package redisconn

import (
	"context"
	"net"
	"strconv"
	"sync"
	"time"
)

// slotNodes knows which node of a cluster has a slot; rueidis has no method for it. It is read at
// the first use, and again after a request has found a node silent, or has been sent to another. A
// slot that has moved since does no harm: a request that was sent to the wrong node is redirected.
type slotNodes struct {
	mu     sync.Mutex
	known  bool
	bySlot []uint16  // indexes of addrs
	addrs  []string  // the first is "", for slots without a node
	next   time.Time // of the next attempt to read, at the earliest
}

const (
	slotsBound = 250 * time.Millisecond // how long a node has to tell the slots
	slotsPause = time.Second            // between attempts to read them
)

// of returns the node of a slot, or "".
func (s *slotNodes) of(ctx context.Context, slot uint16, slots func(context.Context) (answer any, host string)) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.known && !time.Now().Before(s.next) {
		s.next = time.Now().Add(slotsPause)
		answer, host := slots(ctx) // other calls wait meanwhile: it is bounded, and rare
		s.read(answer, host)
	}
	if int(slot) >= len(s.bySlot) {
		return ""
	}
	return s.addrs[s.bySlot[slot]]
}

// forget has the slots read again. Until that succeeds the old ones are still used.
func (s *slotNodes) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = false
}

// read parses the answer of CLUSTER SLOTS: [first, last, [host, port, ...], replicas...]... asked is
// the host of the node that gave it.
func (s *slotNodes) read(answer any, asked string) {
	ranges, _ := answer.([]any)
	if len(ranges) == 0 {
		return
	}
	s.known, s.addrs, s.bySlot = true, []string{""}, make([]uint16, 1<<14)
	index := map[string]uint16{}
	for _, r := range ranges {
		parts, _ := r.([]any)
		if len(parts) < 3 {
			continue
		}
		first, _ := parts[0].(int64)
		last, _ := parts[1].(int64)
		node, _ := parts[2].([]any)
		if len(node) < 2 || node[0] == "?" || first < 0 || last >= int64(len(s.bySlot)) {
			continue
		}
		host, _ := node[0].(string)
		if host == "" {
			host = asked
		}
		port, _ := node[1].(int64)
		addr := net.JoinHostPort(host, strconv.FormatInt(port, 10))
		if index[addr] == 0 {
			index[addr] = uint16(len(s.addrs))
			s.addrs = append(s.addrs, addr)
		}
		for slot := first; slot <= last; slot++ {
			s.bySlot[slot] = index[addr]
		}
	}
}
