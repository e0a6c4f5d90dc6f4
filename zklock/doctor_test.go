package zklock

import (
	"slices"
	"strings"
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/doctor"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

func TestDoctor(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	find := func(fs []driver.Finding, subject string) driver.Finding {
		t.Helper()
		i := slices.IndexFunc(fs, func(f driver.Finding) bool { return strings.HasSuffix(f.Subject, subject) })
		if i < 0 {
			t.Fatalf("nothing about %q in %+v", subject, fs)
		}
		return fs[i]
	}
	e := backends.SharedZooKeeperEnsemble(t)
	s := newSite(t, calm, &Options{Root: "/doctor"}, e.Members...)
	testkit.Release(t, s.lock(t, "a"))
	held := s.lock(t, "b")
	waiting := newSite(t, calm, &Options{Root: "/doctor"}, e.Members...).queue(t, "b")
	fs, err := s.b.Diagnose(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if longest := find(fs, "waiters"); longest.Level != driver.Info || !strings.Contains(longest.Text, "has 2 entries") {
		t.Errorf("%+v", longest)
	}
	testkit.Release(t, held)
	testkit.Release(t, testkit.Granted(t, waiting))
	for subject, level := range map[string]driver.Level{
		"version": driver.Info, "session timeout": driver.Info, "acl": driver.Warn,
	} {
		if f := find(fs, subject); f.Level != level || f.Level != driver.Info && f.Cure == "" {
			t.Errorf("%s: %+v, want level %s", subject, f, level)
		}
	}
	modes := 0
	for _, f := range fs {
		if strings.Contains(f.Text, ", leader") || strings.Contains(f.Text, ", follower") {
			modes++
		}
	}
	if modes != 3 {
		t.Errorf("%d roles told, want three: %+v", modes, fs)
	}

	// A lone server that grants another timeout, and one beside it that is down.
	z := backends.StartZooKeeper(t, backends.ZooKeeperOptions{Config: []string{
		"maxSessionTimeout=6000", "4lw.commands.whitelist=srvr",
	}})
	b, err := open([]string{z.Addr, "127.0.0.1:1"}, &Options{User: "ana", Password: "s3cret"})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if fs, err = b.Diagnose(t.Context()); err != nil {
		t.Fatal(err)
	}
	for subject, level := range map[string]driver.Level{
		"session timeout": driver.Warn, "reach": driver.Bad, "servers": driver.Warn, "acl": driver.Info,
	} {
		if f := find(fs, subject); f.Level != level {
			t.Errorf("%s: %+v, want level %s", subject, f, level)
		}
	}
	if s := strings.Contains(find(fs, "session timeout").Text, "6s granted"); !s {
		t.Errorf("%+v", find(fs, "session timeout"))
	}
}

// A server's replies have every key that the doctor reads: a missing key would make a finding that
// never comes.
func TestDoctorReadsWhatIsThere(t *testing.T) {
	t.Parallel()
	z := backends.SharedZooKeeper(t)
	reply, err := z.Ask("srvr")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"Zookeeper version", "Mode", "Outstanding"} {
		if parseTable(reply, ": ")[key] == "" {
			t.Errorf("srvr has no %q", key)
		}
	}
}

// Each threshold, from both sides.
func TestDoctorJudges(t *testing.T) {
	t.Parallel()
	for longest, level := range map[int32]driver.Level{manyWaiters: driver.Info, manyWaiters + 1: driver.Warn} {
		var x doctor.Report
		if diagnoseWaiters(longest, &x); len(x.Found) != 1 || x.Found[0].Level != level {
			t.Errorf("%d: %+v", longest, x.Found)
		}
	}
	for version, old := range map[string]bool{"3.4.14-abc": true, "3.5.3": false, "3.8.0-5a02": false, "4.0": false, "x": false} {
		if outdated(version, 3, 5) != old {
			t.Errorf("%s outdated: %t", version, !old)
		}
	}
}
