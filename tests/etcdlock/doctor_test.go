package etcdlock_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/etcdlock"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// diagnose returns the findings as "LEVEL SUBJECT: TEXT".
func diagnose(t *testing.T, b *etcdlock.Backend) (found []string) {
	t.Helper()
	for _, f := range testkit.Must[[]driver.Finding](t)(b.Diagnose(ctx(t))) {
		t.Logf("%s: %s: %s (%s)", f.Level, f.Subject, f.Text, f.Cure)
		found = append(found, fmt.Sprintf("%s %s: %s", f.Level, f.Subject, f.Text))
		if (f.Level == driver.Info) != (f.Cure == "") {
			t.Errorf("a %s with the cure %q", f.Level, f.Cure)
		}
	}
	return found
}

// has demands a finding that begins with this and has these words.
func has(t *testing.T, found []string, begin, words string) {
	t.Helper()
	for _, f := range found {
		if strings.HasPrefix(f, begin+": ") && strings.Contains(f, words) {
			return
		}
	}
	t.Errorf("no %q that says %q", begin, words)
}

// A healthy cluster has nothing to complain of: that is the control of all the others.
func TestDoctorOfCluster(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	cluster := backends.StartEtcdCluster(t, backends.EtcdOptions{})
	leader(t, cluster)
	m := cluster.Members
	all, one := backend(t, storeURL(m)), backend(t, storeURL(m[:1]))
	healthy := diagnose(t, all)
	for _, f := range healthy {
		if !strings.HasPrefix(f, string(driver.Info)+" ") {
			t.Errorf("of a healthy cluster: %s", f)
		}
	}
	for _, subject := range []string{"version", "leader", "topology", "db size", "alarms", "lease"} {
		has(t, healthy, "info "+subject, "")
	}
	has(t, diagnose(t, one), "warn topology", "no other is configured")

	if err := m[1].Kill(); err != nil {
		t.Fatal(err)
	}
	leader(t, cluster) // or there may be none for a moment
	has(t, diagnose(t, all), "warn member", "does not answer")

	if err := m[2].Kill(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the last knows that it has no leader", func() bool {
		s := status(t, m[0])
		return s != nil && s.Leader == 0
	})
	alone := diagnose(t, one)
	has(t, alone, "bad leader", "knows no leader")
	has(t, alone, "bad lease", "no lease is granted")
}

// One old member, alone, that grants long leases only.
func TestDoctorOfOld(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	old := backends.StartEtcd(t, backends.EtcdOptions{Old: true, Config: map[string]any{"election-timeout": 3000, "heartbeat-interval": 300}})
	found := diagnose(t, backend(t, storeURL([]*backends.Etcd{old})))
	has(t, found, "warn topology", "one member")
	has(t, found, "warn version", "issue 15247")
	has(t, found, "warn lease", "the shortest TTL granted is 5s")
}

// The quota is nearly used up, and then it is: what to do is said both times.
func TestDoctorOfFull(t *testing.T) {
	t.Parallel()
	e := backends.StartEtcd(t, backends.EtcdOptions{Config: map[string]any{"quota-backend-bytes": 4 << 20}})
	b, raw := backend(t, storeURL([]*backends.Etcd{e})), client(t, e.Addr)
	put := func(i int) error {
		_, err := raw.Put(ctx(t), fmt.Sprint("fill-", i), strings.Repeat("x", 50_000))
		return err
	}
	i := 0
	testkit.Eventually(t, "four fifths are used", func() bool {
		i++
		if err := put(i); err != nil {
			t.Fatal(err)
		}
		s := status(t, e)
		return s != nil && s.DbSize*100/(4<<20) >= 80
	})
	has(t, diagnose(t, b), "warn db size", "% of the quota of 4 MiB")
	for put(i) == nil {
		i++
	}
	has(t, diagnose(t, b), "bad alarms", "NOSPACE")
}

// Rights by parts are told of where it matters: since 3.7 the loss of one right loses all locks
// (TestRenewalNeedsEveryRight).
func TestDoctorOfRights(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		old      bool
		prefixes []string
		query    string
		want     string // "": nothing
	}{
		"whole":     {false, []string{"hasp/"}, "", "info rights: one right"},
		"wider":     {false, []string{"ha"}, "", "info rights: one right"},
		"parts":     {false, []string{"hasp/a", "hasp/b", "hasp/~"}, "", "warn rights: rights to write parts"},
		"other":     {false, []string{"hasp/", "other/a/", "other/~"}, "?prefix=other/", "warn rights: rights to write parts"},
		"parts-3.4": {true, []string{"hasp/a", "hasp/b", "hasp/~"}, "", ""},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			e := guardedBy(t, backends.EtcdOptions{Old: c.old}, c.prefixes...)
			found := diagnose(t, backend(t, "etcd://locks:pa%20ss%2Fword@"+e.Addr+"/"+c.query))
			var rights []string
			for _, f := range found {
				if strings.Contains(f, " rights: ") {
					rights = append(rights, f)
				}
			}
			if got := strings.Join(rights, "\n"); !strings.HasPrefix(got, c.want) || (got == "") != (c.want == "") {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
