package backends

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/hasplock/hasp/internal/testtier"
)

// etcdOrdeal writes through one member and reads through another.
func etcdOrdeal(t *testing.T, s instance, writer, reader *Etcd) {
	ordeal(t, s,
		func() error { _, err := writer.get("any"); return err },
		func() error { return writer.put("key", "value") },
		func() error {
			got, err := reader.get("key")
			if err == nil && got != "value" {
				err = fmt.Errorf("the key holds %q", got)
			}
			return err
		})
}

func TestEtcdSingle(t *testing.T) {
	t.Parallel()
	e := StartEtcd(t, EtcdOptions{})
	etcdOrdeal(t, e, e, e)
}

func TestEtcdOld(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	e := StartEtcd(t, EtcdOptions{Old: true})
	etcdOrdeal(t, e, e, e)
}

func TestEtcdClusterServesWithoutOne(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	c := StartEtcdCluster(t, EtcdOptions{})
	etcdOrdeal(t, c.Members[0], c.Members[0], c.Members[1])
	// The ordeal leaves the first member paused: the other two are a majority.
	if err := eventually(func() error { return c.Members[2].put("key", "later") }); err != nil {
		t.Fatal(err)
	}
	if err := c.Members[1].Kill(); err != nil {
		t.Fatal(err)
	}
	if err := c.Members[2].put("key", "too late"); err == nil {
		t.Fatal("one member of three took a write")
	}
}

func TestWholeClusterRestarts(t *testing.T) {
	testtier.Long(t)
	c := StartEtcdCluster(t, EtcdOptions{})
	if err := eventually(func() error { return c.Members[0].put("key", "value") }); err != nil {
		t.Fatal(err)
	}
	if err := c.KillAll(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Members[2].get("key"); err == nil {
		t.Fatal("a killed cluster answers")
	}
	if err := c.RestartAll(); err != nil {
		t.Fatal(err)
	}
	var got string
	if err := eventually(func() (err error) { got, err = c.Members[2].get("key"); return err }); err != nil || got != "value" {
		t.Fatalf("after the restart the key holds %q (%v)", got, err)
	}
}

func TestEtcdProxyServes(t *testing.T) {
	t.Parallel()
	for _, o := range []EtcdOptions{{}, {Old: true}} {
		e := StartEtcd(t, o)
		p := StartEtcdProxy(t, o, e)
		if err := e.Pause(); err != nil {
			t.Fatal(err)
		}
		if p.healthy() == nil {
			t.Errorf("a proxy (old: %t) says that a stopped server is healthy", o.Old)
		}
		if err := errors.Join(e.Resume(), eventually(p.healthy)); err != nil {
			t.Error(err)
		}
	}
}

func TestEtcdTLSAndEtcdctl(t *testing.T) {
	ctl := Etcdctl(t)
	e := StartEtcd(t, EtcdOptions{TLS: true})
	if err := eventually(func() error { return e.put("key", "value") }); err != nil {
		t.Fatal(err)
	}
	var out []byte
	if err := patiently(func() (err error) {
		get := exec.Command(ctl, "--endpoints", e.URL(), "--cacert", e.CA, "get", "--print-value-only", "key")
		get.Env = append(get.Environ(), "ETCDCTL_API=3")
		out, err = get.CombinedOutput()
		return err
	}); err != nil || strings.TrimSpace(string(out)) != "value" {
		t.Fatalf("etcdctl get: %q (%v), want value", out, err)
	}
	if err := (&Etcd{Addr: e.Addr}).put("key", "plain"); err == nil {
		t.Fatal("a TLS server answers in plaintext")
	}
}

func TestSharedEtcdServes(t *testing.T) {
	e := SharedEtcd(t)
	if err := eventually(func() error { return e.put("key", "value") }); err != nil {
		t.Fatal(err)
	}
	c := SharedEtcdCluster(t)
	if len(c.Addrs()) != 3 {
		t.Fatalf("the members are %v, want 3", c.Addrs())
	}
	for _, m := range c.Members {
		if err := eventually(func() error { return m.put("key", "value") }); err != nil {
			t.Error(err)
		}
	}
}
