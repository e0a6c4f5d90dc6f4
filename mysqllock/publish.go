package mysqllock

import (
	"context"

	"github.com/hasplock/hasp/driver"
)

// Publish replaces the value of the entry. Each request has a number: one whose answer was lost
// may still wait at the server, or in the network, while a later one is confirmed, and must not
// put the older value in its place.
//
// That nothing was replaced means that there is no entry: nobody else publishes under this id,
// and a number is used once.
func (t *ticket) Publish(ctx context.Context, value []byte) error {
	s := t.session
	st := s.table
	s.mu.Lock()
	t.editions++
	edition := t.editions
	s.mu.Unlock()
	n, err := run(ctx, st.work, st.named("UPDATE {p}entries SET value = ?, edition = ? WHERE id = ? AND edition < ?",
		value, edition, t.request.ID, edition))
	if err == nil && n == 0 {
		err = driver.ErrGone
	}
	return st.gone(err)
}
