package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hasplock/hasp/internal/backends"
)

// endpoint is where the servers of a store are. Workers get it as JSON.
type endpoint struct {
	URL    string   `json:"url"`
	Addrs  []string `json:"addrs,omitempty"`
	Served string   `json:"served,omitempty"` // the URL of a hasp serve in front of it
}

// store is one that locks are measured on.
type store struct {
	name  string
	start func(p *backends.Program) endpoint
	// contestants lists the floor before those that are compared with it.
	contestants func(e endpoint) []contestant
	// counter returns what counts the server's commands for locks so far; nil: it cannot.
	counter func(e endpoint, c contestant) (counter, error)
	unit    string // what is counted
	quick   bool   // a crowd gets into its queue in no time
}

// counter counts what a server was asked for, without its own asking.
type counter func() (int64, error)

// role says what a contestant is measured for.
type role string

const (
	floor role = "floor" // the least that any lock on this store can cost
	ours  role = "hasp"
	peer  role = "peer"
)

// contestant is a way to lock.
type contestant struct {
	name  string
	role  role
	floor string // the name of its floor, for a store that has several; "" is the first
	// waits is the floor where there is a queue, by scenario: one that waits in the server, for a
	// contestant whose floor is told its turn.
	waits map[string]string
	// told: it does not exclude other waiters. Where there is contention the turn is passed to
	// it within the process, and it then releases and acquires one after the other.
	told  bool
	sends string // the commands it sends, where the server counts by name
	plain string // the name under which people use it as a lock, though it is a floor here
	only  string // scenarios that it is measured in, "" for all: a run has half an hour
	url   string // of hasp's store
	open  func(ctx context.Context) (client, error)
}

// essentials are the scenarios of a contestant that stands beside another one: a second floor,
// or a strategy that is not the store's first.
const essentials = "S1 S2 S3-64 S4 S6"

// throughout are all scenarios but those that show a strategy of ours by itself.
const throughout = essentials + " S1n S3-8 S3-512"

// client has one connection or a pool, as its library does by default.
type client struct {
	lock  func(ctx context.Context, name string) (unlock func() error, err error)
	close func()
}

// cycle locks and unlocks.
func (c client) cycle(ctx context.Context, name string) error {
	unlock, err := c.lock(ctx, name)
	if err != nil {
		return err
	}
	return unlock()
}

// joins reports whether the contestant is measured in a scenario.
func (c contestant) joins(scenario string) bool {
	return c.only == "" || slices.Contains(strings.Fields(c.only), scenario)
}

var stores = []store{redisStore, redlockStore, zookeeperStore, etcdStore, postgresStore, mysqlStore, fileStore}

// pick returns what a comma-separated list names, all for "all".
func pick[T any](list string, all []T, name func(T) string) ([]T, error) {
	if list == "all" || list == "" {
		return all, nil
	}
	var picked []T
	for want := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(all, func(t T) bool { return strings.EqualFold(name(t), want) })
		if i < 0 {
			var names []string
			for _, t := range all {
				names = append(names, name(t))
			}
			return nil, fmt.Errorf("there is no %q: all, or some of %s", want, strings.Join(names, ","))
		}
		picked = append(picked, all[i])
	}
	return picked, nil
}
