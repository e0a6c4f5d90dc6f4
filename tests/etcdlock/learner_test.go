package etcdlock_test

import (
	"fmt"
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// A learner among the endpoints is asked in its turn, and answers nothing. So another member is
// asked at once: by the first read, by locks, releases and renewals, and by watches.
func TestLearnerAmongEndpoints(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o backends.EtcdOptions) {
		e := backends.StartEtcd(t, o)
		both := []*backends.Etcd{e, backends.StartEtcdLearner(t, e, o)}
		for i := range 10 {
			failed := testkit.Observer(func(ev hasp.Event) {
				if ev.Kind == hasp.EventRenewed && ev.Err != nil {
					t.Errorf("a renewal failed: %v", ev.Err)
				}
			})
			c := testkit.Must[*hasp.Client](t)(hasp.Open(ctx(t), storeURL(both), hasp.WithTTL(faultTTL), hasp.WithObserver(failed)))
			defer c.Close()
			name := fmt.Sprint("learner-", i)
			l := testkit.Must[*hasp.Lease](t)(c.Mutex(name).Lock(ctx(t)))
			next := testkit.Queued(t, c, name)
			testkit.Must[hasp.Queue](t)(c.Inspect(ctx(t), name))
			testkit.Release(t, l)
			testkit.Release(t, testkit.Granted(t, next))
		}
		b := backend(t, storeURL(both))
		s := testkit.Session(t, b, calm, nil)
		for range 5 {
			alive(t, s)
		}
		has(t, diagnose(t, b), string(driver.Warn)+" member", "learner")
	})
}
