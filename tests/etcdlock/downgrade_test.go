package etcdlock_test

import (
	"errors"

	"github.com/hasplock/hasp/driver"
)

// S1, S6: the answer to a downgrade is lost, or all of it comes late, while the holder goes
// on to publish: it does not become as large as it was, and keeps what it has published last.
func lateDowngrade(l *late) {
	k := l.s.Ticket(whole(l.name, l.name+"-a"))
	l.holds(k)
	downgrade := func() error { return k.(driver.Downgrader).Downgrade(ctx(l), 1) }
	publish := func(value string) {
		l.Helper()
		if err := k.(driver.Publisher).Publish(ctx(l), []byte(value)); err != nil {
			l.Fatalf("publish %q: %v", value, err)
		}
	}
	l.p.set(puts(l.name+"-a"), nil)
	if err := downgrade(); !errors.Is(err, errIntercepted) {
		l.Fatalf("downgrade: %v", err)
	}
	l.p.set(nil, puts(l.name+"-a"))
	if err := downgrade(); !errors.Is(err, errIntercepted) {
		l.Fatalf("downgrade: %v", err)
	}
	l.p.set(nil, nil)
	publish("first")
	publish("second")
	l.arrive(l.name + "-a")
	if e := entries(l.T, l.b, l.name)[0]; e.Units != 1 || string(e.Value) != "second" {
		l.complain("it has %d units and the value %q", e.Units, e.Value)
	}
}
