//go:build unix

package main

import (
	"regexp"
	"testing"

	"github.com/hasplock/hasp/internal/backends"
)

// who says when an entry expires on the stores that say it with their queues, and does without on
// the others.
func TestWhoExpires(t *testing.T) {
	for store, says := range map[string]bool{
		backends.SharedRedis(t).URL():                                              true,
		backends.SharedPostgres(t).URL():                                           true,
		backends.SharedMariaDB(t).URL():                                            true,
		"etcd://" + backends.SharedEtcd(t).Addr:                                    false,
		"zookeeper://" + backends.SharedZooKeeper(t).Addr + "?connect_timeout=20s": false,
	} {
		code, out, errOut := hasp(t, store, "run", "--pass-credentials", "--ttl", "1h", "expiring", "--", "hasp", "who", "expiring")
		if in := regexp.MustCompile(` in (59m\d+|1h0m0)s `).MatchString(out); code != 0 || in != says {
			t.Errorf("%s: %d, %s%s", store, code, out, errOut)
		}
		code, out, errOut = hasp(t, store, "run", "--pass-credentials", "--ttl", "1h", "expiring", "--", "hasp", "who", "--json", "expiring")
		if in := regexp.MustCompile(`"expires":"2`).MatchString(out); code != 0 || in != says {
			t.Errorf("%s: %d, %s%s", store, code, out, errOut)
		}
	}
}
