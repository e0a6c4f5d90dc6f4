package redisconn_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

// listen subscribes in the background and returns when the subscription is established.
func listen(t *testing.T, c redisconn.Conn, channel string) (got <-chan string, ended <-chan error, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	up, messages, end := make(chan struct{}, 1), make(chan string, 1000), make(chan error, 1)
	go func() {
		end <- c.Subscribe(ctx, channel, func() {
			select {
			case up <- struct{}{}:
			default:
			}
		}, func(text string) { messages <- text })
	}()
	select {
	case <-up:
	case err := <-end:
		t.Fatalf("subscribe to %s: %v", channel, err)
	case <-time.After(30 * time.Second):
		t.Fatalf("the subscription to %s is not established", channel)
	}
	return messages, end, cancel
}

func receives(t *testing.T, got <-chan string, want string) {
	t.Helper()
	if text := testkit.Await(t, want, got); text != want {
		t.Errorf("received %q, want %q", text, want)
	}
}

func publish(t *testing.T, server *backends.Redis, channel, text string) {
	t.Helper()
	if _, err := server.Do("PUBLISH", channel, text); err != nil {
		t.Fatal(err)
	}
}

// listening returns the channels of our subscriptions at the server.
func listening(t *testing.T, server *backends.Redis) (channels, connections int) {
	t.Helper()
	list, err := server.Do("PUBSUB", "CHANNELS")
	if err != nil {
		t.Fatal(err)
	}
	clients, err := server.Do("CLIENT", "LIST", "TYPE", "pubsub")
	if err != nil {
		t.Fatal(err)
	}
	return len(strings.Fields(list)), strings.Count(clients, "id=")
}

// listens demands that the server comes to have so many channels on so many connections.
func listens(t *testing.T, server *backends.Redis, channels, connections int) {
	t.Helper()
	testkit.Until(t, fmt.Sprintf("%d channels on %d connections", channels, connections), func() error {
		if c, n := listening(t, server); c != channels || n != connections {
			return fmt.Errorf("%d on %d", c, n)
		}
		return nil
	})
}

// All subscriptions share a connection and those to one channel a subscription; each ends
// by itself without a word to the server, and the last one closes the connection.
func TestSubscriptionsShare(t *testing.T) {
	server := backends.StartRedis(t, backends.RedisOptions{})
	c := connect(t, redisconn.Config{Addrs: []string{server.Addr}})
	a1, _, stop1 := listen(t, c, "a")
	a2, end2, stop2 := listen(t, c, "a")
	b, _, stopB := listen(t, c, "b")
	listens(t, server, 2, 1)
	publish(t, server, "a", "one")
	receives(t, a1, "one")
	receives(t, a2, "one")
	stop1()
	publish(t, server, "a", "two")
	receives(t, a2, "two")
	publish(t, server, "b", "three")
	receives(t, b, "three")
	stop2()
	if err := <-end2; err != context.Canceled {
		t.Errorf("ended with %v", err)
	}
	listens(t, server, 2, 1) // "a" as well, whose messages have no listener
	again2, _, stop3 := listen(t, c, "a")
	publish(t, server, "a", "again")
	receives(t, again2, "again")
	stop3()
	stopB()
	listens(t, server, 0, 0)
	again, ended, _ := listen(t, c, "a")
	publish(t, server, "a", "four")
	receives(t, again, "four")
	if _, err := server.Do("CLIENT", "KILL", "TYPE", "pubsub"); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil || err == context.Canceled {
		t.Errorf("a broken connection has ended the subscription with %v", err)
	}
	// a1 may have "two": a busy machine may publish it before the end of that subscription is
	// noticed.
	if len(a1) > 1 || len(a2)+len(b)+len(again) > 0 {
		t.Error("received more than was published")
	}
}

// Others come and go, on the same channel and on ever new ones. A listener that stays hears all
// along, also when the connection is closed because most of its channels are unused; and no
// UNSUBSCRIBE is sent, to which a server may answer in a way that ends the process: see pubsub.
func TestSubscriptionsChurn(t *testing.T) {
	server := backends.StartRedis(t, backends.RedisOptions{})
	c := connect(t, redisconn.Config{Addrs: []string{server.Addr}})
	messages, subscribed := make(chan string, 1000), make(chan struct{}, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	var wg, stays sync.WaitGroup
	l := &redisconn.Listener{
		Conn: c, Channel: "busy", Message: func(text string) { messages <- text },
		Subscribed: func(context.Context) { subscribed <- struct{}{} },
	}
	stays.Go(func() { l.Run(ctx) })
	defer stays.Wait()
	defer cancel()
	<-subscribed
	for worker := range 4 {
		wg.Go(func() {
			for i := range 100 {
				channel := fmt.Sprint("churn", worker, i/2) // each twice
				got, ended, stop := listen(t, c, channel)
				publish(t, server, channel, "x")
				select {
				case <-got:
				case <-ended: // the connection was closed meanwhile
				case <-time.After(30 * time.Second):
					t.Errorf("silenced on %s", channel)
				}
				stop()
			}
		})
	}
	wg.Wait()
	testkit.Until(t, "a message for the one that stays", func() error {
		publish(t, server, "busy", "still here")
		select {
		case <-messages:
			return nil
		case <-time.After(time.Second):
			return errors.New("none")
		}
	})
	if len(subscribed) == 0 {
		t.Error("the connection was never closed: the server keeps every channel that was ever used")
	}
	if n, _ := listening(t, server); n > 250 {
		t.Errorf("%d channels are left at the server", n)
	}
	stats, err := server.Do("INFO", "commandstats")
	if err != nil || strings.Contains(stats, "cmdstat_unsubscribe") || !strings.Contains(stats, "cmdstat_subscribe") {
		t.Errorf("UNSUBSCRIBE was sent, or SUBSCRIBE was not: %v\n%s", err, stats)
	}
}
