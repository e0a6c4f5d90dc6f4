package redislock_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// notTwo has a client hold a lock, changes what is behind its address, and has another client lock
// it: by then the first must not believe any more. With quarantine=off two believe, unless the
// first has learned of it before.
func notTwo(t *testing.T, holder, next *hasp.Client, quarantine string, change func()) {
	t.Helper()
	held := testkit.Lock(t, holder, "a")
	change()
	l := testkit.LockDespiteErrors(t, next, "a")
	switch believed := held.Held(); {
	case quarantine == "on" && believed:
		t.Error("two believe that they hold")
	case quarantine == "off" && !believed:
		t.Log("INCONCLUSIVE: the first has learned of its loss before the second was granted")
	}
	if l.Token() <= held.Token() {
		t.Errorf("token %d after %d", l.Token(), held.Token())
	}
}

// upFor waits until the server counts as one that has nothing to forget for leases of this TTL.
func upFor(t *testing.T, server *backends.Redis, ttl time.Duration) {
	t.Helper()
	testkit.Eventually(t, "the uptime", func() bool {
		info, err := server.Do("INFO", "server")
		_, after, _ := strings.Cut(info, "uptime_in_seconds:")
		text, _, _ := strings.Cut(after, "\r")
		seconds, _ := strconv.Atoi(text)
		return err == nil && time.Duration(seconds-1)*time.Second > ttl
	})
}

// forgetTheWord deletes the operator's word that the server is new, which StartRedis has given, in
// two databases.
func forgetTheWord(t *testing.T, server *backends.Redis) {
	t.Helper()
	do(t, server, "EVAL", "for db = 0, 1 do redis.call('SELECT', db) redis.call('DEL', 'hasp:new') end", "0")
}

// One process of a server is given other data by hand, and these have a mark: another database takes
// the place of this one (SWAPDB), or a dump is restored. A client that was told later than they know
// says so. The dump is older than the present period, or than a TTL that is longer than those before.
func TestOtherData(t *testing.T) {
	t.Parallel()
	restore := func(t *testing.T, server *backends.Redis) (change func()) {
		const dump = `local all = {} for _, key in ipairs(redis.call('KEYS', '*')) do all[#all + 1] = key all[#all + 1] = redis.call('DUMP', key) end
			redis.call('SELECT', 9) for i = 1, #all, 2 do redis.call('HSET', 'dump', all[i], all[i + 1]) end`
		const load = `redis.call('SELECT', 9) local all = redis.call('HGETALL', 'dump') redis.call('SELECT', 0)
			for _, key in ipairs(redis.call('KEYS', '*')) do redis.call('DEL', key) end
			for i = 1, #all, 2 do redis.call('RESTORE', all[i], 0, all[i + 1]) end`
		do(t, server, "EVAL", dump, "0")
		return func() { do(t, server, "EVAL", load, "0") }
	}
	for _, strategy := range strategies {
		for _, quarantine := range []string{"on", "off"} {
			parameters := "?strategy=" + strategy + "&quarantine=" + quarantine
			for what, prepare := range map[string]func(t *testing.T, server *backends.Redis) (change func()){
				"SWAPDB": func(t *testing.T, server *backends.Redis) (change func()) {
					testkit.Release(t, testkit.Lock(t, client(t, server.URL()+"/1"+parameters), "a")) // the other database has a mark
					return func() { do(t, server, "SWAPDB", "0", "1") }
				},
				"RESTORE of a period before": func(t *testing.T, server *backends.Redis) (change func()) {
					change = restore(t, server)
					if quarantine == "on" {
						ago(t, server, strategy, 2*calm)
						testkit.Release(t, testkit.Lock(t, client(t, server.URL()+parameters), "d")) // begins another
					}
					return change
				},
				"RESTORE of shorter TTLs": func(t *testing.T, server *backends.Redis) (change func()) {
					change = restore(t, server)
					testkit.Release(t, testkit.Lock(t, client(t, server.URL()+parameters, hasp.WithTTL(2*calm)), "d"))
					return change
				},
			} {
				t.Run(what+"/"+strategy+"/"+quarantine, func(t *testing.T) {
					t.Parallel()
					server := backends.StartRedis(t, backends.RedisOptions{})
					first, second := client(t, server.URL()+parameters), client(t, server.URL()+parameters)
					testkit.Release(t, testkit.Lock(t, second, "c"))
					change := prepare(t, server)
					testkit.Release(t, testkit.Lock(t, second, "c"))
					notTwo(t, first, second, quarantine, change)
					// Nor does the server close for each client that comes.
					for _, c := range []*hasp.Client{first, client(t, server.URL()+parameters)} {
						wantTry(t, c, "b", nil)
					}
				})
			}
		}
	}
}

// A SWAPDB of other databases, whose counter is reset later, closes this one for no client.
func TestSwapElsewhere(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	do(t, server, "SWAPDB", "1", "2")
	told := client(t, server.URL())
	testkit.Release(t, testkit.Lock(t, told, "a"))
	do(t, server, "CONFIG", "RESETSTAT")
	wantTry(t, told, "a", nil)
	wantTry(t, client(t, server.URL()), "a", nil)
}

// The address of a server leads to another one from now on, which has been up for longer than a
// TTL: its own start says nothing of what the first has granted. Only a client that knew the first
// can say so.
func TestOtherServer(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{"queue", "setnx", "redisson"} {
		for _, quarantine := range []string{"on", "off"} {
			for _, other := range []string{"empty", "in use", "a copy", "a copy in use", "behind"} {
				t.Run(strategy+"/"+quarantine+"/"+other, func(t *testing.T) {
					t.Parallel()
					const ttl = calm / 2
					parameters := "?strategy=" + strategy + "&quarantine=" + quarantine
					old, server := backends.StartRedis(t, backends.RedisOptions{}), newReplica(t)
					address := testkit.Proxy(t, old.Addr)
					storeURL := "redis://" + address.Addr() + parameters
					first, second := client(t, storeURL, hasp.WithTTL(ttl)), client(t, storeURL, hasp.WithTTL(ttl))
					testkit.Release(t, testkit.Lock(t, second, "a"))
					switch other {
					case "in use", "behind":
						testkit.Release(t, testkit.Lock(t, client(t, server.URL()+parameters, hasp.WithTTL(ttl)), "a"))
					case "a copy", "a copy in use": // which was made a master some time ago
						if quarantine == "on" {
							for range 2 { // all periods look alike since then
								ago(t, old, strategy, calm)
								testkit.Release(t, testkit.Lock(t, client(t, old.URL()+parameters, hasp.WithTTL(ttl)), "a"))
							}
						}
						follow(t, server, old)
						do(t, server, "REPLICAOF", "NO", "ONE")
						if other == "a copy in use" {
							testkit.UseDespiteErrors(t, client(t, server.URL()+parameters, hasp.WithTTL(ttl)), "a")
						}
					}
					forgetTheWord(t, server)
					upFor(t, server, ttl)
					if other == "behind" && quarantine == "on" { // its clock
						ago(t, old, strategy, -time.Hour)
					}
					testkit.Release(t, testkit.Lock(t, second, "a"))
					notTwo(t, first, second, quarantine, func() {
						must(t, address.Redirect(server.Addr))
						address.Reset()
					})
				})
			}
		}
	}
}

// One loss closes once, also if clients knew different data before it: three are told of data that FLUSHALL removes
// then, one after the other, and come back when another client has waited for the last loss.
func TestOneLossClosesOnce(t *testing.T) {
	t.Parallel()
	for _, strategy := range strategies {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			server := backends.StartRedis(t, backends.RedisOptions{})
			var idle []*hasp.Client
			for range 3 {
				c := client(t, server.URL()+"?strategy="+strategy, hasp.WithTTL(T))
				testkit.UseDespiteErrors(t, c, "a")
				idle = append(idle, c)
				do(t, server, "FLUSHALL")
			}
			fresh := client(t, server.URL()+"?strategy="+strategy, hasp.WithTTL(T))
			wantTry(t, fresh, "a", hasp.ErrQuarantine)
			testkit.UseDespiteErrors(t, fresh, "a")
			for _, c := range append(idle, fresh) {
				wantTry(t, c, "a", nil)
			}
		})
	}
}
