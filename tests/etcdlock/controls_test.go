package etcdlock_test

import (
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/broken"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// handOver is the check of most tests of faults. Here each of its complaints is provoked
// by a flaw that must cause it, on a server without any fault.
func TestHandOverSees(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	url := storeURL([]*backends.Etcd{backends.SharedEtcd(t)})
	good := func() *hasp.Client { return testkit.Client(t, url, hasp.WithTTL(faultTTL)) }
	for _, c := range []struct {
		name           string
		holder, waiter *hasp.Client
		meanwhile      time.Duration
		want           string // what it must say; "": nothing
	}{
		{name: "sound", holder: good(), waiter: good()},
		{name: "deaf", holder: good(), waiter: flawed(t, url, broken.Deaf), want: "did not take over"},
		{name: "liar", holder: flawed(t, url, broken.Liar, hasp.WithTTL(faultTTL)), waiter: good(), meanwhile: 3 * faultTTL, want: "exclusion"},
		{name: "lawless", holder: good(), waiter: flawed(t, url, broken.Lawless), want: "exclusion"},
		{name: "forger", holder: flawed(t, url, broken.Forger), waiter: good(), want: "tokens"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			x := handOver{
				holder: c.holder, waiter: c.waiter, name: "sees-" + c.name,
				meanwhile: func() { time.Sleep(c.meanwhile) },
			}
			if c.want == "did not take over" {
				x.within = time.Second // it would not come in a year
			}
			wrong := strings.Join(x.run(t), "\n")
			if c.want == "" && wrong != "" || !strings.Contains(wrong, c.want) {
				t.Errorf("it said %q, want %q", wrong, c.want)
			}
		})
	}
}
