package mysqllock

import (
	"context"
	cryptorand "crypto/rand"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/pushqueue"
)

// session is a client's row in the table of sessions, and what the client knows of its
// entries. All of them live as long as that row is renewed.
//
// Trust is counted from the sending of the last good renewal. That is right because the
// server takes the moment that it counts from later than that; because a client that
// removes entries first puts expires back to 1970, under the lock of the row, so that a renewal
// comes before that and is seen, or after it and fails; and because nothing else shortens
// expires. What is entered later lives by the same row.
type session struct {
	*pushqueue.Session[extra]

	table *table
	id    string

	renewal *keptConn // for renewals alone

	rows    rowEntries
	wakeups wakeups

	listener listener // waits at the wake-up lock of another session, or polls; see listen
	second   listener // polls while the first is not aware of all that waits

	removing bool // a goroutine removes dead sessions; guarded by the session's lock

	listeners sync.WaitGroup // and the waking, and the removing
}

// ticket is the ticket of one entry.
type (
	ticket = pushqueue.Ticket[extra]
	extra  struct {
		// Guarded by the session's lock.
		inRow  bool   // the entry was made in the row of its name, and may be there
		wakeup string // that of the session in its way, until listened at
		ahead  int    // how many must leave before it
	}
)

func newSession(t *table, o driver.SessionOptions) *session {
	s := &session{
		table: t, id: strings.ToLower(cryptorand.Text()),
		renewal: newKeptConn(t.kept), listener: listener{conn: newKeptConn(t.kept)}, second: listener{conn: newKeptConn(t.kept)},
	}
	s.rows = rowEntries{session: s}
	s.wakeups = wakeups{session: s, off: t.galera.Load()}
	s.Session = pushqueue.New[extra](s, o)
	s.Waiting = s.listenLocked
	return s
}

// Close removes the session with all its entries. It may be called again after an error.
//
// Also after an error the connections are given up: there may be no other call. It does not wait
// for that then, since a departure that the server does not answer has the renewals' connection for
// longer than ctx lasts.
func (s *session) Close(ctx context.Context) error {
	s.End() // and with it the listening
	err := s.table.endSession(ctx, s.table.work, s.id)
	if err != nil && !isMissing(err) { // what is missing is removed
		go s.disconnect()
		return err
	}
	s.disconnect()
	return nil
}

// disconnect gives the connections up, that of the renewals with the wake-up locks: who waits at
// them looks.
func (s *session) disconnect() {
	s.listeners.Wait()
	s.renewal.end()
}

// retry is when a waiter asks although it was told nothing. The listening misses nothing
// that the procedures do; this is for changes of the tables by hand.
func (s *session) retry() time.Duration { return max(s.Options.TTL, time.Second) }

// origin names a run of a server, which the procedures number: 0 is none.
func origin(server uint64) string {
	if server == 0 {
		return ""
	}
	return strconv.FormatUint(server, 10)
}
