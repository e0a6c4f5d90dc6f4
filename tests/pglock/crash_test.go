package pglock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/history"
	"github.com/hasplock/hasp/internal/recordedhold"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
	"github.com/hasplock/hasp/tests/internal/linear"
)

// crashes is how often the server crashes, or fails over: HASP_CRASHES for a campaign.
func crashes(t *testing.T) int {
	text := os.Getenv("HASP_CRASHES")
	if text == "" {
		return 2
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("HASP_CRASHES=%q is not a number of crashes", text)
	}
	return n
}

// The strategy advisory, and what has its tokens an hour ahead of the clock, so that this hides
// nothing.
const advisory, ahead = "strategy=advisory", "UPDATE hasp_ceiling SET ceiling = ceiling + 3600000000"

// S1, T1: the server crashes under load, again and again, with its log writer as lazy as it can be,
// so that it forgets releases that do not wait for the disk. No two hold, and no token is lower
// than one before. The control has its tables in no log.
func TestCrashes(t *testing.T) {
	for mode, params := range map[string]string{"asynchronous": "", "synchronous": "durable_release=on"} {
		t.Run(mode, func(t *testing.T) {
			h := crashed(t, crashes(t), params, "", 6*time.Second, time.Second)
			linear.Require(t, h, linear.Options{Fencing: true})
		})
	}
	t.Run("advisory", func(t *testing.T) {
		h := crashed(t, crashes(t), advisory, ahead, 6*time.Second, time.Second)
		linear.Require(t, h, linear.Options{Fencing: true})
	})
	t.Run("control of advisory", func(t *testing.T) {
		for range 10 { // a busy machine may have no token drawn after a crash
			h := crashed(t, 2, advisory, ahead+"; ALTER TABLE hasp_ceiling SET UNLOGGED", 6*time.Second, time.Second)
			if len(history.Check(h, history.Options{Fencing: true})) > 0 {
				return
			}
		}
		t.Error("a server that forgets where its tokens end was not caught")
	})
	t.Run("control", func(t *testing.T) {
		// Its holders outlast the restart of a server on a busy machine, and do not renew
		// meanwhile: a renewal would tell them.
		for range 10 { // who holds at that moment is left to chance
			h := crashed(t, 2, "", "ALTER TABLE hasp_entries SET UNLOGGED; ALTER TABLE hasp_sessions SET UNLOGGED; ALTER TABLE hasp_names SET UNLOGGED",
				time.Minute, 10*time.Second)
			if len(history.Exclusion(h)) > 0 {
				return
			}
		}
		t.Error("a server that forgets all locks in a crash was not caught")
	})
}

// crashed has clients lock while the server crashes, and returns what they were told.
func crashed(t *testing.T, times int, params, prepare string, ttl, long time.Duration) history.History {
	server := backends.StartPostgres(t, backends.PostgresOptions{Config: []string{"wal_writer_delay = 10s"}})
	storeURL := sqlkit.With(server.URL(), "connections=2", params)
	makeTables(t, server, storeURL, prepare)
	stop := load(t, storeURL, ttl, long)
	for range times {
		time.Sleep(200*time.Millisecond + rand.N(600*time.Millisecond))
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := server.Restart(); err != nil {
			t.Fatal(err)
		}
	}
	return stop()
}

// makeTables has them made, and changed.
func makeTables(t *testing.T, server *backends.Postgres, storeURL, change string) {
	t.Helper()
	testkit.Release(t, testkit.Lock(t, testkit.Client(t, storeURL), "first use"))
	if change != "" {
		sqlkit.Postgres(t, server.URL(), change)
	}
}

// load has clients lock until a second after stop is called, which returns what they were told.
// Some hold for long, and some give up soon, which cancels their statement at the server.
func load(t *testing.T, storeURL string, ttl, long time.Duration) (stop func() history.History) {
	rec := history.New()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 6 {
		// Of the names some are free most of the time, some are waited for, and some are held by
		// one client for longer than a crash lasts. A client each: one that finds its session
		// forgotten ends all its leases.
		for j, hold := range []struct {
			name     string
			lasting  time.Duration
			patience time.Duration
		}{
			{fmt.Sprint("free ", i), 0, time.Minute},
			{fmt.Sprint("busy ", i%2), 0, time.Minute},
			{fmt.Sprint("busy ", i%2), 0, 200 * time.Millisecond},
			{fmt.Sprint("long ", i%2), long, time.Minute},
		} {
			one := recordedhold.Hold{
				Client: testkit.Client(t, storeURL, hasp.WithTTL(ttl)), Who: fmt.Sprint("client ", i, ".", j),
				Name: hold.name, For: hold.lasting, TTL: ttl,
			}
			wg.Go(func() {
				for ctx.Err() == nil {
					soon, cancel := context.WithTimeout(ctx, hold.patience)
					_ = one.Run(soon, rec)
					cancel()
				}
			})
		}
	}
	return func() history.History {
		t.Helper()
		time.Sleep(time.Second) // after the last crash they go on
		cancel()
		wg.Wait()
		h, err := rec.History()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d locks", len(h))
		return h
	}
}
