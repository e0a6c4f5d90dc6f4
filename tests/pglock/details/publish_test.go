package pglock_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// A value is published, and gets no answer: the network has the request. Another is published
// after it and confirmed. When the network delivers the first, the second stays.
func TestLatePublish(t *testing.T) {
	t.Parallel()
	storeURL := sqlkit.PostgresStore(t)
	serverURL := backends.SharedPostgres(t).URL()
	late, slow := behindLate(t, storeURL, "the first value")
	b := testkit.Open(t, sqlkit.With(slow, "application_name=late"))
	t.Cleanup(func() { b.Close() })
	s, _, err := b.Open(t.Context(), driver.SessionOptions{TTL: ends, Gone: func(string, error) {}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(context.Background()) })
	name := t.Name()
	ticket := s.Ticket(driver.Request{Name: name, ID: rand.Text(), Units: driver.Whole, Capacity: driver.Whole, Since: time.Now(), Value: []byte("zeroth")})
	if v, err := ticket.Enqueue(testkit.Context(t)); err != nil || !v.Held {
		t.Fatal(v, err)
	}
	p := ticket.(driver.Publisher)
	short, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() { first <- p.Publish(short, []byte("the first value")) }()
	late.wait(testkit.Context(t), t)
	cancel()
	if err := <-first; err == nil {
		t.Fatal("a request that was not read was answered")
	}
	if err := p.Publish(testkit.Context(t), []byte("the second")); err != nil {
		t.Fatal(err)
	}
	direct := testkit.Open(t, storeURL)
	t.Cleanup(func() { direct.Close() })
	value := func() []byte {
		list, err := direct.List(t.Context(), name, 1)
		if err != nil || len(list) != 1 {
			t.Fatal(list, err)
		}
		return list[0].Value
	}
	// The client has closed that connection: the server ends it when it has done what it was asked.
	connections := func() int {
		return ask[int](t, serverURL, "SELECT count(*)::int FROM pg_stat_activity WHERE application_name = 'late'")
	}
	before := connections()
	late.Deliver()
	testkit.Eventually(t, "the late request dealt with", func() bool { return connections() < before })
	if got := value(); !bytes.Equal(got, []byte("the second")) {
		t.Errorf("the value is %q", got)
	}
	if err := p.Publish(testkit.Context(t), []byte("the third")); err != nil || string(value()) != "the third" {
		t.Errorf("the value is %q, %v", value(), err)
	}
}
