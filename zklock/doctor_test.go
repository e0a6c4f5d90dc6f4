package zklock

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/hasplock/hasp/driver"
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
		"version": driver.Info, "tickTime": driver.Info, "session timeout": driver.Info, "acl": driver.Warn, "disk": driver.Info,
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

	// A lone server that grants another timeout, allows few connections and few commands,
	// and one beside it that is down.
	z := backends.StartZooKeeper(t, backends.ZooKeeperOptions{Config: []string{
		"maxClientCnxns=20", "maxSessionTimeout=6000", "4lw.commands.whitelist=srvr,conf",
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
		"session timeout": driver.Warn, "maxClientCnxns": driver.Warn, "reach": driver.Bad, "servers": driver.Warn, "root": driver.Info,
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
	for command, keys := range map[string][]string{
		"srvr": {"Zookeeper version", "Mode", "Outstanding"},
		"conf": {"tickTime", "minSessionTimeout", "maxSessionTimeout", "maxClientCnxns"},
		"mntr": {"zk_avg_fsynctime", "zk_max_client_response_size"},
	} {
		reply, err := z.Ask(command)
		if err != nil {
			t.Fatal(err)
		}
		have := parseTable(reply, map[string]string{"srvr": ": ", "conf": "=", "mntr": "\t"}[command])
		for _, key := range keys {
			if have[key] == "" {
				t.Errorf("%s has no %q", command, key)
			}
		}
	}
}

// Each threshold, from both sides.
func TestDoctorJudges(t *testing.T) {
	t.Parallel()
	type reply = map[string]string
	type adder = func(level driver.Level, subject, text, cure string)
	conf, mntr := (&backend{opts: &Options{}}).diagnoseSettings, diagnoseMetrics
	for _, c := range []struct {
		check func(reply, adder)
		reply reply
		want  map[string]driver.Level
	}{
		{conf, reply{"tickTime": "2000", "maxClientCnxns": "0"}, map[string]driver.Level{"tickTime": driver.Info}},
		{conf, reply{"tickTime": "3001", "maxClientCnxns": "99"}, map[string]driver.Level{"tickTime": driver.Warn, "maxClientCnxns": driver.Warn}},
		{conf, reply{"maxClientCnxns": "100"}, map[string]driver.Level{}},
		{mntr, reply{"zk_avg_fsynctime": "99.9", "zk_max_client_response_size": "-1"}, map[string]driver.Level{"disk": driver.Info}},
		{mntr, reply{"zk_avg_fsynctime": "100.1", "zk_max_client_response_size": "524289"}, map[string]driver.Level{"disk": driver.Warn, "jute.maxbuffer": driver.Warn}},
		{mntr, reply{"zk_max_client_response_size": "524288"}, map[string]driver.Level{}},
	} {
		got := map[string]driver.Level{}
		c.check(c.reply, func(level driver.Level, subject, text, cure string) {
			got[subject] = level
			if level != driver.Info && cure == "" {
				t.Errorf("%s: %s, and what to do?", subject, text)
			}
		})
		if !maps.Equal(got, c.want) {
			t.Errorf("found %v, want %v", got, c.want)
		}
	}
	if few, many := diagnoseWaiters(manyWaiters), diagnoseWaiters(manyWaiters+1); few.Level != driver.Info || many.Level != driver.Warn || many.Cure == "" {
		t.Errorf("%+v, %+v", few, many)
	}
	for version, old := range map[string]bool{"3.4.14-abc": true, "3.5.3": false, "3.8.0-5a02": false, "4.0": false, "x": false} {
		if outdated(version, 3, 5) != old {
			t.Errorf("%s outdated: %t", version, !old)
		}
	}
}
