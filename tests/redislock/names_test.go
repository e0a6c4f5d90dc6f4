package redislock_test

import (
	"fmt"
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// Many names are remembered and one is held. A listing tells its caller that the store answers, and
// reads many names in one round trip. (`hasp ls` gave a store up that had answered 25,770 times.)
func TestNamesOfManyRemembered(t *testing.T) {
	t.Parallel()
	for strategy, remember := range map[string]string{
		"queue":    "redis.call('HSET', 'hasp:{old' .. i .. '}', 'hasp2', '1 2')",
		"setnx":    "redis.call('SET', 'hasp:lock:t:{old' .. i .. '}', '1')",
		"redisson": "redis.call('SET', 'hasp:lock:t:{old' .. i .. '}', '1')",
	} {
		t.Run(strategy, func(t *testing.T) {
			server := backends.StartRedis(t, backends.RedisOptions{})
			storeURL := server.URL() + "?strategy=" + strategy
			const remembered = 5000
			do(t, server, "EVAL", fmt.Sprintf("for i = 1, %d do %s end", remembered, remember), "0")
			testkit.Lock(t, client(t, storeURL), "held")
			answers := 0
			ctx := driver.WithProgress(t.Context(), func() { answers++ })
			var names []string
			must(t, testkit.Open(t, storeURL).(driver.Namer).Names(ctx, "", func(name string) bool {
				names = append(names, name)
				return true
			}))
			if fmt.Sprint(names) != "[held]" || answers < remembered/500 || answers > remembered/10 {
				t.Errorf("%q, with %d answers", names, answers)
			}
		})
	}
}
