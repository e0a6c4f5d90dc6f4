package simulation

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

// A cluster has a server for each part of the slots, and behind them the replicas of each. A client
// sends a request to the server that had the slot when it was told last.

// slotOf is the slot of a key.
func slotOf(key string) uint16 {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			key = tag
		}
	}
	crc := uint16(0)
	for _, b := range []byte(key) {
		crc ^= uint16(b) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc % 16384
}

// owner is the server that has a slot by what the cluster has agreed on.
func (w *world) owner(slot uint16) int {
	if n, moved := w.owners[slot]; moved {
		return n
	}
	return w.groups[int(slot)%w.cluster]
}

// redirects is the answer of a server that does not have the slot, "" of one that has it. A master
// that was replaced, and does not know it, serves on.
func (s *server) redirects(slot uint16) redisconn.ServerError {
	w := s.world
	if w.cluster == 0 {
		return ""
	}
	n := w.owner(slot)
	if n == s.n || s.unaware && n == s.replacedBy {
		return ""
	}
	return redisconn.ServerError(fmt.Sprintf("MOVED %d simulation:%d", slot, n))
}

// move gives a slot with its keys to another server, as redis-cli --cluster reshard does.
func (w *world) move(slot uint16, to *server) {
	from := w.servers[w.owner(slot)]
	if from == to || !from.alive || from.master != nil || !to.alive || to.master != nil {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(from.data.db[0])) {
		if slotOf(key) == slot {
			w.noteOldMark(from.data.db[0][key], slot, from, to)
			to.data.db[0][key] = from.data.db[0][key].copy()
			delete(from.data.db[0], key)
			to.counted("restore-asking")
		}
	}
	from.written()
	to.written()
	from.counts["cluster|setslot"]++
	to.counts["cluster|setslot"]++
	w.owners[slot], w.moved[slot] = to.n, w.reigns
}

// noteOldMark notes that a slot goes back to the server that wrote its mark, after a failover to a
// replica that has heard of nothing since the slot left: older data in the place of newer.
func (w *world) noteOldMark(v *value, slot uint16, from, to *server) {
	if v.hash["reign"] == to.replID && from.since > w.moved[slot] {
		w.exempt = "a slot goes back after a failover"
	}
}

// takeOver makes a replica the master of its master's slots. The old one serves on if it does not
// know of it.
func (w *world) takeOver(r *server) {
	m := r.master
	if m == nil || !r.alive {
		return
	}
	for i, n := range w.groups {
		if n == m.n {
			w.groups[i] = r.n
		}
	}
	for slot, n := range w.owners {
		if n == m.n {
			w.owners[slot] = r.n
		}
	}
	m.replacedBy = r.n
	r.promote()
}
