package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/hasplock/hasp/internal/backends"
)

var etcdStore = store{
	name: "etcd",
	unit: "messages",
	start: func(p *backends.Program) endpoint {
		s := backends.StartEtcd(p, backends.EtcdOptions{})
		return endpoint{URL: "etcd://" + s.Addr, Addrs: []string{s.Addr}}
	},
	contestants: func(e endpoint) []contestant {
		addr := e.Addrs[0]
		return []contestant{
			{name: "floor", role: floor, told: true, open: txnFloor(addr)},
			haspOn("hasp", e.URL),
			// Not in S4: goroutines of one session share its key, and do not exclude one another.
			{name: "concurrency.Mutex", role: peer, only: "S1 S1n S2 S3-8 S3-64 S3-512 S6", open: concurrencyMutex(addr)},
		}
	},
	counter: func(e endpoint, _ contestant) (counter, error) {
		return func() (int64, error) { return received(e.Addrs[0]) }, nil
	},
}

func dialEtcd(addr string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{addr}, DialTimeout: time.Minute, Logger: zap.NewNop()})
}

// txnFloor is one transaction that puts a key with a lease, and one deletion.
func txnFloor(addr string) func(context.Context) (client, error) {
	return func(ctx context.Context) (client, error) {
		c, err := dialEtcd(addr)
		if err != nil {
			return client{}, err
		}
		s, err := concurrency.NewSession(c, concurrency.WithTTL(int(ttl/time.Second)))
		if err != nil {
			return client{}, err
		}
		return client{
			lock: func(ctx context.Context, name string) (func() error, error) {
				key := fmt.Sprintf("floor/%s/%x", name, s.Lease())
				_, err := c.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
					Then(clientv3.OpPut(key, "", clientv3.WithLease(s.Lease()))).Commit()
				return func() error {
					_, err := c.Delete(context.WithoutCancel(ctx), key)
					return err
				}, err
			},
			close: func() { c.Close() },
		}, nil
	}
}

func concurrencyMutex(addr string) func(context.Context) (client, error) {
	return func(context.Context) (client, error) {
		c, err := dialEtcd(addr)
		if err != nil {
			return client{}, err
		}
		s, err := concurrency.NewSession(c, concurrency.WithTTL(int(ttl/time.Second)))
		if err != nil {
			return client{}, err
		}
		return client{
			lock: func(ctx context.Context, name string) (func() error, error) {
				m := concurrency.NewMutex(s, "peer/"+name)
				if err := m.Lock(ctx); err != nil {
					return nil, err
				}
				return func() error { return m.Unlock(context.WithoutCancel(ctx)) }, nil
			},
			close: func() { c.Close() },
		}, nil
	}
}

// received is how many messages the server has had from its clients.
func received(addr string) (sum int64, err error) {
	resp, err := http.Get("http://" + addr + "/metrics")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), "} ")
		if !strings.HasPrefix(name, "grpc_server_msg_received_total{") {
			continue
		}
		f, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, err
		}
		sum += int64(f)
	}
	return sum, lines.Err()
}
