package pglock

import (
	"context"
	"testing"

	"github.com/hasplock/hasp/driver"
)

// A client that is stopped in the midst of a transaction, with the lock of a name, does not keep
// the one that holds the name from renewing: the server ends its transaction.
func TestStoppedInTransaction(t *testing.T) {
	t.Parallel()
	b := openHere(t, serverURL(t, "prefix=stopped_"))
	s, _ := holding(t, b, 10*patience, "a")
	ctx, goOn := context.WithCancel(limited(t))
	defer goOn()
	stopped, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- stop(ctx, b, "SELECT FROM hasp_names WHERE name = 'a' FOR UPDATE", func() { close(stopped) })
	}()
	select {
	case <-stopped: // it has the lock of the name
	case err := <-ended:
		t.Fatal(err)
	}
	if _, err := s.KeepAlive(limited(t)); err != nil {
		t.Fatalf("renewal: %v", err)
	}
	if len(ended) > 0 {
		t.Errorf("it was not stopped: %v", <-ended)
	}
	goOn()
	if err := <-ended; err == nil {
		t.Error("the transaction has gone on")
	}
}

// stop runs a statement in a transaction of several, and is stopped before its end until ctx ends.
func stop(ctx context.Context, b driver.Backend, stmt string, stopped func()) error {
	t := b.(*table).tables
	return t.pool.atomically(ctx, func(tx runner) error {
		if err := tx.script(ctx, t.naming.sql(stmt)); err != nil {
			return err
		}
		stopped()
		<-ctx.Done()
		return ctx.Err()
	})
}
