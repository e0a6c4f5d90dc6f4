package simulation

import (
	"fmt"
	"time"
)

// server is a process of Redis, and what it has in memory.
type server struct {
	world *world
	n     int // its number in the world
	data  *data
	alive bool

	runID   string
	started int64 // by its clock
	skew    int64 // of its clock
	counts  map[string]int
	evicted int
	full    bool // its memory
	old     bool // of version 6.2

	unaware    bool // in a cluster: it was replaced, and does not know it
	replacedBy int

	replication
	files []file // what it has had on its disk, the newest last
}

// file is a snapshot.
type file struct {
	data   *data
	replID string // of the history that it is of; "": it does not say
	offset int64
	of     string // the history, also if it does not say
}

func newServer(w *world, n int) *server {
	s := &server{world: w, n: n}
	s.start(file{data: newData()})
	return s
}

// fakeEpoch moves the fake clock, which begins in 2000, to a year in which a microsecond has the digits
// that it has today.
const fakeEpoch = 27 * 365 * 24 * 3600 * 1e6

// now is the server's clock, in microseconds.
func (s *server) now() int64 { return time.Now().UnixMicro() + s.world.epoch + s.skew }

// id is a random id of 40 hexadecimal digits: unique, and the same in each run.
func (w *world) id() string {
	w.ids++
	return fmt.Sprintf("%08x%032x", w.ids*2654435761&0xffffffff, w.ids)
}

// start begins a process with the data of a file.
func (s *server) start(f file) {
	s.alive, s.runID, s.started = true, s.world.id(), s.now()
	s.counts, s.evicted, s.full = map[string]int{}, 0, false
	s.data = f.data.copy()
	s.replication = replication{master: s.master, since: s.since, replID: s.world.id(), second: noID}
	switch {
	case f.replID == "":
	case s.master != nil:
		s.replID, s.offset, s.backlog = f.replID, f.offset, true
	case !s.old: // since version 7 a master goes on with the history of its file as a second one
		s.second, s.offset, s.backlog = secondID{f.replID, f.offset + 1}, f.offset, true
		s.alone = s.now()
	}
	s.reconnect()
}

// die ends the process. Its disk stays.
func (s *server) die() {
	s.alive = false
	s.unlink()
	s.world.disconnect(s)
}

// save writes a file, as SAVE does: with the history if the process has one.
func (s *server) save() file {
	f := file{data: s.data.copy(), offset: s.offset, of: s.replID}
	if s.backlog || s.master != nil {
		f.replID = s.replID
	}
	return f
}

// keepFile notes the present state as one that a later restart may begin with.
func (s *server) keepFile() {
	if n := len(s.files); !s.alive || n > 0 && s.files[n-1].offset == s.offset && s.files[n-1].of == s.replID {
		return
	}
	s.files = append(s.files, s.save())
}

// back returns the state of so many files ago.
func (s *server) back(n int) file {
	if at := len(s.files) - 1 - n; at >= 0 {
		return s.files[at]
	}
	return file{data: newData()}
}

// written replicates what a command or script has changed.
func (s *server) written() {
	s.offset++
	for _, r := range s.connected() {
		r.follow()
	}
}

// counted notes a command of the replication stream that mark.lua looks for.
func (s *server) counted(name string) {
	s.counts[name]++
	s.data.streamed[name]++
}

func (s *server) flushAll() {
	s.counted("flushall")
	s.data.db = newData().db
	s.written()
}

func (s *server) swapDB() {
	s.counted("swapdb")
	s.data.db[0], s.data.db[1] = s.data.db[1], s.data.db[0]
	s.written()
}

// restore puts an older dump of the data in the place of the present ones, key by key.
func (s *server) restore(f file) {
	s.counted("del")
	s.counted("restore")
	s.data.db = f.data.copy().db
	s.written()
}

// evictAll removes all keys, as a server with too little memory does.
func (s *server) evictAll() {
	s.evicted += s.data.keys()
	s.data.db = newData().db
	s.written()
}

func (s *server) resetStat() {
	clear(s.counts)
	s.evicted = 0
	if s.old {
		s.counts["config"]++
	} else {
		s.counts["config|resetstat"]++
	}
}
