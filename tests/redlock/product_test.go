package redlock_test

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// A server on which no lock would hold has no vote, and is named: here one with active-replica among
// three. The control is the same three with their own words.
func TestProductRefused(t *testing.T) {
	t.Parallel()
	master := regexp.MustCompile(`role:master\r\nconnected_slaves:0`)
	var addrs []string
	for range 3 {
		addrs = append(addrs, backends.StartRedis(t, backends.RedisOptions{}).Addr)
	}
	planted := testkit.Rewritten(t, addrs[0], func(said []byte) {
		if old := master.Find(said); old != nil {
			testkit.Overwrite(said, string(old), "role:active-replica\r\nplant:000")
		}
	})
	c, err := hasp.Open(t.Context(), "redlock://"+strings.Join(addrs, ","))
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	addrs[0] = planted
	if _, err := hasp.Open(t.Context(), "redlock://"+strings.Join(addrs, ",")); !errors.Is(err, hasp.ErrInvalid) || !strings.Contains(err.Error(), "active-replica") || !strings.Contains(err.Error(), planted) {
		t.Error(err)
	}
}
