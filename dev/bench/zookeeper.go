package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp/internal/backends"
)

var zookeeperStore = store{
	name: "zookeeper",
	unit: "packets",
	start: func(p *backends.Program) endpoint {
		s := backends.StartZooKeeper(p, backends.ZooKeeperOptions{})
		return endpoint{URL: "zookeeper://" + s.Addr + "/bench", Addrs: []string{s.Addr}}
	},
	contestants: func(e endpoint) []contestant {
		addr := e.Addrs[0]
		return []contestant{
			{name: "floor", only: throughout, role: floor, told: true, open: nodeFloor(addr)},
			haspOn("hasp queue", e.URL),
			simple(e.URL),
			{name: "go-zookeeper", only: throughout, role: peer, open: zkLock(addr)},
		}
	},
	counter: func(e endpoint, _ contestant) (counter, error) {
		return func() (int64, error) { return packets(e.Addrs[0]) }, nil
	},
}

// simple is the scheme of one node that everybody waits for, beside the queue.
func simple(storeURL string) contestant {
	c := haspOn("hasp node", storeURL+"-node?strategy=node")
	c.only = "S1 S3-64 herd"
	return c
}

func dialZooKeeper(ctx context.Context, addr string) (*zk.Conn, error) {
	c, events, err := zk.Connect([]string{addr}, ttl, zk.WithLogInfo(false))
	if err != nil {
		return nil, err
	}
	for {
		select {
		case ev := <-events:
			if ev.State == zk.StateHasSession {
				return c, nil
			}
		case <-ctx.Done():
			c.Close()
			return nil, ctx.Err()
		}
	}
}

// nodeFloor creates an ephemeral sequential node and deletes it: two round trips.
func nodeFloor(addr string) func(context.Context) (client, error) {
	return func(ctx context.Context) (client, error) {
		c, err := dialZooKeeper(ctx, addr)
		if err != nil {
			return client{}, err
		}
		var made sync.Map
		return client{
			lock: func(_ context.Context, name string) (func() error, error) {
				parent := "/floor-" + name
				if _, ok := made.LoadOrStore(name, true); !ok {
					_, err := c.Create(parent, nil, 0, zk.WorldACL(zk.PermAll))
					if err != nil && !errors.Is(err, zk.ErrNodeExists) {
						return nil, err
					}
				}
				node, err := c.Create(parent+"/x-", make([]byte, 200), zk.FlagEphemeralSequential, zk.WorldACL(zk.PermAll))
				return func() error { return c.Delete(node, -1) }, err
			},
			close: c.Close,
		}, nil
	}
}

// zkLock is the client library's own recipe, whose waiting nothing can end.
func zkLock(addr string) func(context.Context) (client, error) {
	return func(ctx context.Context) (client, error) {
		c, err := dialZooKeeper(ctx, addr)
		if err != nil {
			return client{}, err
		}
		return client{
			lock: func(_ context.Context, name string) (func() error, error) {
				l := zk.NewLock(c, "/peer-"+name, zk.WorldACL(zk.PermAll))
				return l.Unlock, l.Lock()
			},
			close: c.Close,
		}, nil
	}
}

// packets is the server's count of received packets, by a four-letter word.
func packets(addr string) (int64, error) {
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if _, err := io.WriteString(c, "mntr"); err != nil {
		return 0, err
	}
	reply, err := io.ReadAll(c)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(reply)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "zk_packets_received\t"); ok {
			f, err := strconv.ParseFloat(v, 64)
			return int64(f), err
		}
	}
	return 0, fmt.Errorf("zookeeper at %s does not tell its packets", addr)
}
