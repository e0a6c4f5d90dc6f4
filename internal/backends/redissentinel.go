package backends

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/serverprocess"
)

// RedisSentinel is a master with one replica, watched by three sentinels that replace
// the master about a second after it stops answering.
type RedisSentinel struct {
	group
	MasterName      string // by which the sentinels know it
	Master, Replica *Redis // the roles they begin with
	Sentinels       []*Redis
}

// StartRedisSentinel starts the five processes for this test alone.
func StartRedisSentinel(tb testing.TB) *RedisSentinel {
	tb.Helper()
	return private(tb, startRedisSentinel, redisServer)
}

// CurrentMaster asks the sentinels for the address of the master until two of them
// agree. Between its death and the election of another they still name the dead one.
func (s *RedisSentinel) CurrentMaster() (addr string, err error) {
	votes := make(map[string]int)
	for _, sentinel := range s.Sentinels {
		reply, err := sentinel.Do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", s.MasterName)
		if err != nil {
			continue // one of three may be down
		}
		addr := strings.ReplaceAll(reply, "\n", ":")
		if votes[addr]++; votes[addr] == 2 {
			return addr, nil
		}
	}
	return "", fmt.Errorf("the sentinels of %s do not agree on a master: %v", s.MasterName, votes)
}

func startRedisSentinel() (*RedisSentinel, error) {
	s := &RedisSentinel{MasterName: "hasp"}
	start := func(role string, config ...string) (*Redis, error) {
		r, err := startRedisAs(role, RedisOptions{Config: config})
		if err == nil {
			s.group = append(s.group, r.Process)
		}
		return r, err
	}
	var err error
	if s.Master, err = start("redis"); err != nil {
		return nil, err
	}
	// Replication without the usual 5 s of waiting for more replicas.
	const atOnce = "repl-diskless-sync-delay 0"
	if err := s.Master.expect("OK", "CONFIG", "SET", "repl-diskless-sync-delay", "0"); err != nil {
		return s.fail(err)
	}
	if s.Replica, err = start("redis", "replicaof "+spaced(s.Master.Addr), atOnce); err != nil {
		return s.fail(err)
	}
	// Before the sentinels: they ask the master for its replicas at once, then only every
	// ten seconds.
	if err := eventually(func() error { return linked(s.Replica) }); err != nil {
		return s.fail(err)
	}
	for range 3 {
		sentinel, err := start("sentinel",
			"sentinel monitor "+s.MasterName+" "+spaced(s.Master.Addr)+" 2",
			"sentinel down-after-milliseconds "+s.MasterName+" 500",
			"sentinel failover-timeout "+s.MasterName+" 3000")
		if err != nil {
			return s.fail(err)
		}
		s.Sentinels = append(s.Sentinels, sentinel)
	}
	if err := eventually(s.complete); err != nil {
		return s.fail(err)
	}
	return s, nil
}

// fail removes what has been started so far.
func (s *RedisSentinel) fail(err error) (*RedisSentinel, error) {
	return nil, errors.Join(fmt.Errorf("start a master with sentinels: %w", err), s.Discard())
}

// complete reports what is missing for a failover to be possible: sentinels learn of each
// other through the master, which takes them up to two seconds.
func (s *RedisSentinel) complete() error {
	for _, sentinel := range s.Sentinels {
		reply, err := sentinel.Do("SENTINEL", "MASTER", s.MasterName)
		if err != nil {
			return err
		}
		if !strings.Contains(reply, "num-slaves\n1\n") || !strings.Contains(reply, "num-other-sentinels\n2\n") {
			return fmt.Errorf("%s does not know all others yet", sentinel.Addr)
		}
	}
	return nil
}

// linked complains unless a replica has its master's data and follows it.
func linked(replica *Redis) error {
	reply, err := replica.Do("INFO", "replication")
	if err == nil && !strings.Contains(reply, "master_link_status:up") {
		err = fmt.Errorf("replica %s has no link to its master", replica.Addr)
	}
	return err
}

func spaced(addr string) string { return strings.Replace(addr, ":", " ", 1) }

// eventually repeats check until it has nothing to complain about.
func eventually(check func() error) error {
	for deadline := time.Now().Add(serverprocess.StartLimit); ; time.Sleep(4 * serverprocess.PollEvery) {
		err := check()
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}
