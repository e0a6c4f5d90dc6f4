package otelhasp_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp/hasptest"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/otelhasp"
)

func TestQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, reader := measured(t, otelhasp.MetricsOptions{})
		store := hasptest.New()
		c := testkit.ClientOn(t, store.Backend())
		l, err := c.Mutex("deploy").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Release(context.WithoutCancel(t.Context())) }()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range 2 { // separate clients: of one client, only one waits in the store's queue
			go func() { _ = acquire(ctx, testkit.ClientOn(t, store.Backend()), "deploy") }()
		}
		time.Sleep(7 * time.Second)
		if n := count(t, reader, "hasp.queue.up"); n != 0 {
			t.Errorf("%d queues are read that were not asked for", n)
		}

		registration, err := m.Queues(c, time.Second, "deploy", "idle")
		if err != nil {
			t.Fatal(err)
		}
		expect(t, reader, `
hasp.queue.up{name=deploy,store=mem://} 1
hasp.queue.up{name=idle,store=mem://} 1
hasp.queue.holders{name=deploy,store=mem://} 1
hasp.queue.holders{name=idle,store=mem://} 0
hasp.queue.waiters{name=deploy,store=mem://} 2
hasp.queue.waiters{name=idle,store=mem://} 0
hasp.queue.oldest_waiter{name=deploy,store=mem://} 7
hasp.queue.oldest_waiter{name=idle,store=mem://} 0
`)
		heal := store.Cut()
		asked := time.Now()
		expect(t, reader, `
hasp.queue.up{name=deploy,store=mem://} 0
hasp.queue.up{name=idle,store=mem://} 0
`)
		if took := time.Since(asked); took != time.Second {
			t.Errorf("two queues that cannot be read hold the others up by %s", took)
		}
		for _, old := range []string{"hasp.queue.holders", "hasp.queue.waiters", "hasp.queue.oldest_waiter"} {
			if n := count(t, reader, old); n != 0 {
				t.Errorf("%d old numbers of %s", n, old)
			}
		}
		heal()
		if n := count(t, reader, "hasp.queue.waiters"); n != 2 {
			t.Errorf("%d queues after the store came back", n)
		}
		if err := registration.Unregister(); err != nil {
			t.Fatal(err)
		}
		if n := count(t, reader, "hasp.queue.up"); n != 0 {
			t.Errorf("%d queues are read on", n)
		}
	})
}
