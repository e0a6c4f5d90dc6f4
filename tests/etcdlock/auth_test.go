package etcdlock_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"maps"
	"net"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

const secret = "pa ss/word"

// guarded starts an etcd with passwords, tokens that expire soon, and a user "locks" who
// may read and write below hasp/ and nothing else.
func guarded(t *testing.T) *backends.Etcd {
	t.Helper()
	return guardedBy(t, backends.EtcdOptions{Config: map[string]any{"auth-token-ttl": 1}}, "hasp/")
}

// guardedBy is guarded with a right for each of these prefixes. Passwords cost the least that
// etcd allows: at the default, a busy machine takes seconds to compare one.
func guardedBy(t *testing.T, o backends.EtcdOptions, prefixes ...string) *backends.Etcd {
	t.Helper()
	config := map[string]any{"bcrypt-cost": 4}
	maps.Copy(config, o.Config)
	o.Config = config
	e := backends.StartEtcd(t, o)
	c := client(t, e.Addr)
	steps := []func() error{
		func() error { _, err := c.RoleAdd(ctx(t), "locks"); return err },
		func() error {
			for _, p := range prefixes {
				if err := permit(t, c, p); err != nil {
					return err
				}
			}
			return nil
		},
		func() error { _, err := c.UserAdd(ctx(t), "locks", secret); return err },
		func() error { _, err := c.UserGrantRole(ctx(t), "locks", "locks"); return err },
		func() error { _, err := c.RoleAdd(ctx(t), "root"); return err },
		func() error { _, err := c.UserAdd(ctx(t), "root", secret); return err },
		func() error { _, err := c.UserGrantRole(ctx(t), "root", "root"); return err },
		func() error { _, err := c.AuthEnable(ctx(t)); return err },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

// permit lets the user "locks" read and write below a prefix.
func permit(t *testing.T, c *clientv3.Client, prefix string) error {
	t.Helper()
	_, err := c.RoleGrantPermission(ctx(t), "locks", prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(clientv3.PermReadWrite))
	return err
}

// as is etcd's own client with a user's password.
func as(t *testing.T, e *backends.Etcd, user string) *clientv3.Client {
	t.Helper()
	c := testkit.Must[*clientv3.Client](t)(clientv3.New(clientv3.Config{
		Endpoints: []string{"http://" + e.Addr}, Username: user, Password: secret,
		Logger: clientv3.NewCtxClient(ctx(t)).GetLogger(), // to nowhere
	}))
	t.Cleanup(func() { c.Close() })
	return c
}

// User and password, with a role for the prefix and no more; tokens expire under calls,
// renewals and watches, without an effect. The waiter's own renewals are far apart, so
// that they cannot be what wakes it.
func TestPasswordAndTokenRenewal(t *testing.T) {
	t.Parallel()
	e := guarded(t)
	url := "etcd://locks:pa%20ss%2Fword@" + e.Addr + "/"
	renewals := &tally{}
	keeper := testkit.Client(t, url, hasp.WithTTL(steady), hasp.WithObserver(renewals))
	holder, waiter := testkit.Client(t, url, hasp.WithTTL(calm)), testkit.Client(t, url, hasp.WithTTL(calm))
	kept := testkit.Lock(t, keeper, "kept")
	for i, name := range []string{"a", "b"} {
		handOver{holder: holder, waiter: waiter, name: name, meanwhile: func() {
			time.Sleep(time.Duration(i+1) * 2 * time.Second) // unused tokens last a second
		}}.passes(t)
	}
	renewals.renewed(t, 1)
	if _, err := keeper.Inspect(ctx(t), "kept"); err != nil {
		t.Errorf("inspect: %v", err)
	}
	if !kept.Held() {
		t.Errorf("lost: %v", kept.Err())
	}
	testkit.Release(t, kept)
	for name, err := range keeper.Names(ctx(t), "") {
		t.Errorf("left: %q, %v", name, err)
	}
}

// denials is an observer that knows whether a renewal was refused.
type denials struct{ seen atomic.Bool }

func (d *denials) Observe(ev hasp.Event) {
	if ev.Kind == hasp.EventRenewed && errors.Is(ev.Err, driver.ErrRefused) {
		d.seen.Store(true)
	}
}

// etcd.md and doctor say what etcd does: since 3.7 it renews a client's locks only while the
// client may write every one of them; before, those that it may still write were renewed.
func TestRenewalNeedsEveryRight(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	onBoth(t, func(t *testing.T, o backends.EtcdOptions) {
		e := guardedBy(t, o, "hasp/good", "hasp/bad", "hasp/~")
		renewals, denied := &tally{}, &denials{}
		c := testkit.Client(t, "etcd://locks:pa%20ss%2Fword@"+e.Addr+"/", hasp.WithTTL(steady), hasp.WithObserver(renewals), hasp.WithObserver(denied))
		good := testkit.Lock(t, c, "good")
		testkit.Lock(t, c, "bad")
		root := as(t, e, "root")
		testkit.Must[*clientv3.AuthRoleRevokePermissionResponse](t)(root.RoleRevokePermission(ctx(t), "locks", "hasp/bad", clientv3.GetPrefixRangeEnd("hasp/bad")))
		if o.Old {
			renewals.renewed(t, 2)
			if !good.Held() {
				t.Errorf("lost: %v", good.Err())
			}
			return
		}
		await(t, "the other lock is lost as well", good.Context().Done())
		if !denied.seen.Load() {
			t.Errorf("lost, and no renewal was refused: %v", good.Err())
		}
	})
}

func TestAccessDenied(t *testing.T) {
	t.Parallel()
	e := guarded(t)
	for url, want := range map[string]struct {
		err   error
		words string
	}{
		"etcd://locks:wrong" + secret[:2] + "@" + e.Addr + "/": {driver.ErrInvalid, "invalid user ID or password"},
		"etcd://unknown:" + secret[:2] + "@" + e.Addr + "/":    {driver.ErrInvalid, "invalid user ID or password"},
		"etcd://" + e.Addr: {driver.ErrRefused, "put USER:PASSWORD@"},
		"etcd://locks:pa%20ss%2Fword@" + e.Addr + "/?prefix=elsewhere": {driver.ErrRefused, "grant-permission"},
	} {
		began := time.Now()
		_, err := hasp.Open(ctx(t), url)
		for range 3 { // a busy machine takes its time to compare passwords
			if err != nil && strings.Contains(err.Error(), "no answer within") {
				_, err = hasp.Open(ctx(t), url)
			}
		}
		if !errors.Is(err, want.err) || !strings.Contains(err.Error(), want.words) {
			t.Errorf("open: %v, want %v: %s", err, want.err, want.words)
		}
		if err != nil && (strings.Contains(err.Error(), secret[:2]+"@") || strings.Contains(err.Error(), "wrong"+secret[:2])) {
			t.Errorf("the password is in the message: %v", err)
		}
		if took := time.Since(began); took > soon {
			t.Errorf("told after %s", took)
		}
	}
}

// TLS as it should be, and in the ways in which it is not: each is told at once, with the cause and
// what to do, with a password as well. No time-out is the caller's, who has none.
func TestTLS(t *testing.T) {
	t.Parallel()
	e := backends.StartEtcd(t, backends.EtcdOptions{TLS: true})
	plain := backends.SharedEtcd(t)
	silent, web := testkit.Proxy(t, plain.Addr), httptest.NewServer(nil)
	defer web.Close()
	silent.Partition()
	c := testkit.Client(t, "etcd://"+e.Addr+"/?ca="+e.CA)
	testkit.Release(t, testkit.Lock(t, c, "tls"))
	for what, bad := range map[string]struct{ url, words string }{
		"unknown authority":           {"etcd://" + e.Addr + "/?tls=true", "name the authority's certificate"},
		"wrong host":                  {"etcd://" + elsewhere(t, e.Addr) + "/?ca=" + e.CA, "certificate"},
		"plaintext server":            {"etcd://" + plain.Addr + "/?ca=" + e.CA, "take tls, ca and cert out"},
		"the same, with a password":   {"etcd://u:p@" + plain.Addr + "/?ca=" + e.CA, "take tls, ca and cert out"},
		"TLS server, plaintext URL":   {"etcd://" + e.Addr, "put tls=true"},
		"the same with a password":    {"etcd://u:p@" + e.Addr, "put tls=true"},
		"no certificate of ours":      {"etcd://" + demanding(t, e) + "/?ca=" + e.CA, "certificate"},
		"hangs up, with words unread": {"etcd://" + hangingUp(t), "put tls=true"},
		"the same before a handshake": {"etcd://" + hangingUp(t) + "/?ca=" + e.CA, "take tls, ca and cert out"},
		"web server":                  {"etcd://" + web.Listener.Addr().String(), "not etcd's client port"},
		"silent server":               {"etcd://" + silent.Addr(), "or a firewall"},
		"silent, with a password":     {"etcd://u:p@" + silent.Addr(), "or a firewall"},
		"no server":                   {"etcd://127.0.0.1:1", "connection refused"},
		"none, with a password":       {"etcd://u:p@127.0.0.1:1", "connection refused"},
		"authority is not there":      {"etcd://" + e.Addr + "/?ca=/nowhere/ca.pem", "no such file"},
		"certificate without a key":   {"etcd://" + e.Addr + "/?cert=" + e.CA, "belong together"},
		"certificate in place of CA":  {"etcd://" + e.Addr + "/?ca=/dev/null", "no PEM certificate"},
	} {
		began := time.Now()
		_, err := hasp.Open(context.Background(), bad.url)
		for range 3 { // the attempt has an end, and a busy machine's handshake may come later
			if err != nil && strings.Contains(err.Error(), "no answer within") {
				_, err = hasp.Open(context.Background(), bad.url)
			}
		}
		if err == nil || !strings.Contains(err.Error(), bad.words) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", what, err)
		}
		if took := time.Since(began); took > soon {
			t.Errorf("%s: told after %s", what, took)
		}
	}
}

// demanding is the address of a server with e's certificate that wants the client's as well.
func demanding(t *testing.T, e *backends.Etcd) string {
	t.Helper()
	file := func(name string) string { return filepath.Join(filepath.Dir(e.CA), name) }
	own := testkit.Must[tls.Certificate](t)(tls.LoadX509KeyPair(file("server.pem"), file("server.key")))
	l := testkit.Must[net.Listener](t)(tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{own}, ClientAuth: tls.RequireAnyClientCert, NextProtos: []string{"h2"},
	}))
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(io.Discard, conn) // the handshake fails
			}()
		}
	}()
	return l.Addr().String()
}

// hangingUp is the address of a server that answers with a reset, as the system does for a server that
// ends a connection before it has read all: whether etcd's client reads EOF then is a race.
func hangingUp(t *testing.T) string {
	t.Helper()
	l := testkit.Must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 1))
			_ = conn.(*net.TCPConn).SetLinger(0) // a close is a reset then
			conn.Close()
		}
	}()
	return l.Addr().String()
}

// elsewhere is the server at an address for which it has no certificate.
func elsewhere(t *testing.T, addr string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Skipf("a second loopback address is needed: %v", err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", addr)
			if err != nil {
				in.Close()
				continue
			}
			go func() { io.Copy(out, in); out.Close() }()
			go func() { io.Copy(in, out); in.Close() }()
		}
	}()
	return l.Addr().String()
}

func TestBadURLs(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"etcd://", "etcd://,", "etcd://h:0", "etcd://h:99999", "etcd://h/path", "etcd:opaque", "etcd://:2379",
		"etcd://h/?unknown=1", "etcd://h/?tls=perhaps", "etcd://h/?prefix=a&prefix=b",
		"etcd://user@h", "etcd://:password@h", "etcd://h/?tls=false&ca=/x", "etcd://h/?cert=/x&key=/y",
	} {
		cancelled, cancel := context.WithCancel(ctx(t))
		cancel() // a request would fail for this
		_, err := hasp.Open(cancelled, url)
		if !errors.Is(err, hasp.ErrInvalid) {
			t.Errorf("%s: %v", url, err)
		}
		if err != nil && strings.Contains(err.Error(), "password@") {
			t.Errorf("the password is in the message: %v", err)
		}
	}
}

// A TTL that etcd cannot count is refused before anything is sent.
func TestTTL(t *testing.T) {
	t.Parallel()
	e := backends.SharedEtcd(t)
	url := storeURL([]*backends.Etcd{e})
	if _, err := hasp.Open(ctx(t), url, hasp.WithTTL(time.Second)); !errors.Is(err, hasp.ErrInvalid) {
		t.Errorf("a TTL of a second: %v", err)
	}
	b := backend(t, url)
	cancelled, cancel := context.WithCancel(ctx(t))
	cancel() // a request would fail for this
	for _, ttl := range []time.Duration{0, -1, time.Second, 2500 * time.Millisecond, 10*time.Second + 1} {
		if _, _, err := b.Open(cancelled, driver.SessionOptions{TTL: ttl}); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("a TTL of %s: %v", ttl, err)
		}
	}
	for _, ttl := range []time.Duration{2 * time.Second, 7 * time.Second} {
		var again time.Duration
		err := driver.ErrGone
		for range 5 { // a busy machine may let a session end before it is renewed
			if !errors.Is(err, driver.ErrGone) {
				break
			}
			s, granted, failed := b.Open(ctx(t), driver.SessionOptions{TTL: ttl})
			if failed != nil || granted != ttl {
				t.Fatalf("asked for %s: %s, %v", ttl, granted, failed)
			}
			again, err = s.KeepAlive(ctx(t))
			s.Close(ctx(t))
		}
		if err != nil || again != ttl {
			t.Errorf("renewed for %s, %v", again, err)
		}
	}
}

// Prefixes keep users of one cluster apart, and the empty one is etcdctl's own root.
func TestPrefix(t *testing.T) {
	t.Parallel()
	e := backends.SharedEtcd(t)
	raw := client(t, e.Addr)
	var held []*hasp.Lease
	for _, query := range []string{"", "?prefix=other/", "?prefix=other", "?prefix="} {
		c := testkit.Client(t, "etcd://"+e.Addr+"/"+query)
		held = append(held, testkit.Must[*hasp.Lease](t)(c.Mutex("prefix").TryLock(ctx(t))))
		for name, err := range c.Names(ctx(t), "pref") {
			if name != "prefix" || err != nil {
				t.Errorf("with %q: name %q, %v", query, name, err)
			}
		}
	}
	for i, prefix := range []string{"hasp/", "other/", "other", ""} {
		if k := keys(t, raw, prefix+"prefix/"); len(k) != 1 {
			t.Errorf("prefix %q: %q", prefix, k)
		}
		testkit.Release(t, held[i])
	}
}
