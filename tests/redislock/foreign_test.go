package redislock_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// Two clients that use different formats on one name: the error names the other format and the
// cure; the key is left alone. The controls are keys of the right format, which are busy and no
// error.
func TestErrorNamesTheOtherFormat(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	const java = "8743c9c0-0795-4907-87fd-6c719a6b4586:1"
	rlock := []string{"HSET", java, "1"}
	for _, c := range []struct {
		strategy string
		put      []string // the command without its key
		want     []string // of the error; nil: busy
	}{
		{"queue", rlock, []string{"Redisson", "strategy=redisson"}},
		{"queue", []string{"SET", "kfj3Hd9akfj3Hd9akfj3Hw=="}, []string{"redsync", "strategy=setnx"}},
		{"setnx", rlock, []string{"Redisson", "strategy=redisson"}},
		{"setnx", []string{"HSET", "mode", "read", java, "1"}, []string{"read-write lock of Redisson"}},
		{"setnx", []string{"HSET", "hasp1", "1700000000000000"}, []string{"strategy=queue"}},
		{"setnx", []string{"RPUSH", "x"}, []string{"a list", "no lock known"}},
		{"redisson", []string{"SET", "0123456789abcdef0123456789abcdef"}, []string{"redis-py", "strategy=setnx"}},
		{"redisson", []string{"SET", "01JABC 1700000000000000 ana@web-3"}, []string{"hasp, strategy=setnx"}},
		{"redisson", []string{"HSET", "hasp1", "1700000000000000"}, []string{"strategy=queue"}},
		{"redisson", []string{"HSET", "mode", "write", java + ":write", "1"}, []string{"read-write lock of Redisson"}},
		{"setnx", []string{"SET", "kfj3Hd9akfj3Hd9akfj3Hw=="}, nil},
		{"redisson", rlock, nil},
	} {
		t.Run(c.strategy+" "+strings.Join(c.put[:2], " "), func(t *testing.T) {
			key := "orders"
			if c.strategy == "queue" {
				key = "hasp:{orders}"
			}
			do(t, server, "FLUSHALL")
			do(t, server, append([]string{c.put[0], key}, c.put[1:]...)...)
			before := do(t, server, "DUMP", key)
			cl := client(t, server.URL()+"?strategy="+c.strategy)
			_, err := cl.Mutex("orders").TryLock(t.Context())
			if want := hasp.ErrBusy; c.want == nil {
				if !errors.Is(err, want) {
					t.Errorf("%v, want busy", err)
				}
				return
			}
			if !errors.Is(err, hasp.ErrMismatch) {
				t.Fatalf("%v, want a mismatch", err)
			}
			for _, w := range append(c.want, `"`+key+`"`) {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%v: says nothing of %s", err, w)
				}
			}
			if do(t, server, "DUMP", key) != before {
				t.Error("the key was touched")
			}
		})
	}
}

// The doctor finds such names by itself: those that hasp has once taken, or that begin with its
// prefix.
func TestDoctorFindsOtherFormats(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	for _, strategy := range []string{"queue", "setnx", "redisson"} {
		storeURL := server.URL() + "?strategy=" + strategy
		c := client(t, storeURL)
		held := testkit.Lock(t, c, strategy+"-held")
		if f, found := findings(t, storeURL)["dialects"]; found {
			t.Errorf("%s: %+v", strategy, f)
		}
		must(t, testkit.Lock(t, c, strategy).Release(t.Context()))
		key := strategy
		if strategy == "queue" {
			key = "hasp:{queue}"
		}
		do(t, server, "DEL", key)
		if strategy == "redisson" {
			do(t, server, "SET", key, "kfj3Hd9akfj3Hd9akfj3Hw==")
			testkit.WantFinding(t, findings(t, storeURL), "dialects", driver.Warn, "redsync")
		} else {
			do(t, server, "HSET", key, "8743c9c0-0795-4907-87fd-6c719a6b4586:1", "1")
			testkit.WantFinding(t, findings(t, storeURL), "dialects", driver.Warn, "a lock of Redisson")
		}
		must(t, held.Release(t.Context()))
	}
}
