package backends

import (
	"strings"
	"testing"
)

// redisOrdeal is ordeal for a server with append-only file.
func redisOrdeal(t *testing.T, r *Redis) {
	ordeal(t, r,
		func() error { return r.expect("PONG", "PING") },
		func() error { return r.expect("OK", "SET", "key", "value") },
		func() error { return r.expect("value", "GET", "key") })
}

func TestRedisSingle(t *testing.T) {
	t.Parallel()
	redisOrdeal(t, StartRedis(t, RedisOptions{AppendOnly: true, AppendFsync: "always"}))
}

func TestRedisForgetsWithoutPersistence(t *testing.T) {
	r := StartRedis(t, RedisOptions{})
	if err := r.expect("OK", "SET", "key", "value"); err != nil {
		t.Fatal(err)
	}
	if err := r.Restart(); err != nil {
		t.Fatal(err)
	}
	if err := r.expect("(nil)", "GET", "key"); err != nil {
		t.Fatal(err)
	}
}

func TestRedisPasswordAndTLS(t *testing.T) {
	for _, o := range []RedisOptions{
		{Password: "secret"},
		{User: "locker", Password: "secret"},
		{User: "locker", Password: "secret", TLS: true},
	} {
		r := StartRedis(t, o)
		if err := r.expect("PONG", "PING"); err != nil {
			t.Fatal(err)
		}
		anonymous := &Redis{Addr: r.Addr, TLS: r.TLS}
		if _, err := anonymous.Do("PING"); err == nil || !strings.Contains(err.Error(), "NOAUTH") {
			t.Errorf("%+v: without password: %v, want NOAUTH", o, err)
		}
		if o.TLS {
			plain := &Redis{Addr: r.Addr, options: o}
			if _, err := plain.Do("PING"); err == nil {
				t.Error("a TLS server answers in plaintext")
			}
		}
	}
}

func TestRedisConfigLines(t *testing.T) {
	r := StartRedis(t, RedisOptions{Config: []string{"maxmemory 7mb"}})
	if err := r.expect("maxmemory\n7340032", "CONFIG", "GET", "maxmemory"); err != nil {
		t.Fatal(err)
	}
}

func TestRedisNodesAreIndependent(t *testing.T) {
	nodes := StartRedisNodes(t, 5, RedisOptions{})
	if len(nodes) != 5 {
		t.Fatalf("%d nodes, want 5", len(nodes))
	}
	if err := nodes[0].expect("OK", "SET", "key", "value"); err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes[1:] {
		if err := n.expect("(nil)", "GET", "key"); err != nil {
			t.Error(err)
		}
	}
}

func TestSharedRedisIsOne(t *testing.T) {
	var addr [2]string
	for i := range addr {
		t.Run("user", func(t *testing.T) { addr[i] = SharedRedis(t).Addr })
	}
	if addr[0] != addr[1] {
		t.Fatalf("two tests got the servers %v", addr)
	}
	if err := SharedRedis(t).expect("PONG", "PING"); err != nil {
		t.Fatalf("the shared server did not outlive the test that started it: %v", err)
	}
}
