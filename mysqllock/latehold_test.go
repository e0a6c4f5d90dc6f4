package mysqllock

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/testkit"
)

// Between the grant and the moment in which the ticket knows that it holds, a busy machine may stop
// for longer than the record of the holder waits. (The record was not made then, and the holder was
// shown without a name.)
func TestRecordOfALateHolder(t *testing.T) {
	t.Parallel()
	b := openHere(t, "", "prefix=latehold_&strategy=getlock").(*bound)
	open := func() *boundSession {
		s, _, err := b.Open(t.Context(), driver.SessionOptions{TTL: time.Hour, Gone: func(string, error) {}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close(context.Background()) })
		return s.(*boundSession)
	}
	first, second := open(), open()
	holder := first.Ticket(testkit.RequestAs("a", "holds"))
	if v, err := holder.Enqueue(t.Context()); err != nil || !v.Held {
		t.Fatalf("%+v, %v", v, err)
	}
	waiter := second.Ticket(testkit.RequestAs("a", "waits"))
	if v, err := waiter.Enqueue(t.Context()); err != nil || v.Held {
		t.Fatalf("%+v, %v", v, err)
	}
	granted := make(chan error, 1)
	go func() {
		_, err := waiter.Wait(t.Context())
		granted <- err
	}()
	second.mu.Lock() // the ticket needs it to hold
	err := holder.Leave(t.Context())
	time.Sleep(20 * noteAfter)
	second.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	if err := testkit.Await(t, "the grant", granted); err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, "the record", func() error {
		list, err := b.List(t.Context(), "a", 0)
		if err != nil || len(list) != 1 || list[0].ID != "waits" {
			return fmt.Errorf("%+v, %v", list, err)
		}
		return nil
	})
}
