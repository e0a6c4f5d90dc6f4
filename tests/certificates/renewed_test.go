// Package certificates_test tries on every store what happens when certificates are renewed.
package certificates_test

import (
	"context"
	"crypto/tls"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "github.com/hasplock/hasp/etcdlock"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	_ "github.com/hasplock/hasp/mysqllock"
	_ "github.com/hasplock/hasp/pglock"
	_ "github.com/hasplock/hasp/redislock"
	_ "github.com/hasplock/hasp/redislock/redlock"
	_ "github.com/hasplock/hasp/zklock"
)

// server is a store that serves TLS.
type server struct {
	url     string // without ca=
	ca      string
	trusts  func(*tls.Config) // for the test's own questions
	process interface {
		Kill() error
		Restart() error
	}
}

// A client goes on when the certificates of its server and of its authority, and its own, are
// renewed in their files: it reads them for each connection. One that is told to trust the old
// authority does not connect, so that what is read anew is verified.
func TestRenewedCertificates(t *testing.T) {
	for store, start := range map[string]func(t *testing.T) server{
		"redis": func(t *testing.T) server {
			// A certificate of the client's own is verified, where one is shown.
			r := backends.StartRedis(t, backends.RedisOptions{TLS: true, AppendOnly: true, Config: []string{"tls-auth-clients optional"}})
			dir := filepath.Dir(r.CA)
			u := r.URL() + "?cert=" + url.QueryEscape(filepath.Join(dir, "server.pem")) + "&key=" + url.QueryEscape(filepath.Join(dir, "server.key"))
			return server{u, r.CA, func(c *tls.Config) { r.TLS = c }, r}
		},
		"etcd": func(t *testing.T) server {
			e := backends.StartEtcd(t, backends.EtcdOptions{TLS: true})
			return server{"etcd://" + e.Addr, e.CA, func(c *tls.Config) { e.TLS = c }, e}
		},
		"zookeeper": func(t *testing.T) server {
			z := backends.StartZooKeeper(t, backends.ZooKeeperOptions{TLS: true})
			return server{"zookeeper://" + z.Addr, z.CA, func(c *tls.Config) { z.TLS = c }, z}
		},
		"postgres": func(t *testing.T) server {
			p := backends.StartPostgres(t, backends.PostgresOptions{TLS: true})
			return server{p.URL(), p.CA, func(*tls.Config) {}, p}
		},
		"mariadb": func(t *testing.T) server {
			m := backends.StartMariaDB(t, backends.MariaDBOptions{TLS: true})
			return server{m.URL(), m.CA, func(*tls.Config) {}, m}
		},
	} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			old := filepath.Join(t.TempDir(), "old.pem")
			pem, err := os.ReadFile(s.ca)
			if err == nil {
				err = os.WriteFile(old, pem, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			renewed, stale := testkit.Client(t, trusting(t, s.url, s.ca)), testkit.Client(t, trusting(t, s.url, old))
			testkit.Release(t, testkit.Lock(t, renewed, "before"))
			testkit.Release(t, testkit.Lock(t, stale, "before, too"))

			s.trusts(backends.RenewCertificates(t, s.ca))
			if err := s.process.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := s.process.Restart(); err != nil {
				t.Fatal(err)
			}
			testkit.UseDespiteErrors(t, renewed, "after")
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			if l, err := stale.Mutex("after, too").Lock(ctx); err == nil {
				t.Errorf("with the old authority: %v", l)
			}
		})
	}
}

// trusting is a URL with a parameter for the file of the authority.
func trusting(t *testing.T, storeURL, ca string) string {
	u, err := url.Parse(storeURL)
	if err != nil {
		t.Fatal(err)
	}
	q, key := u.Query(), "ca"
	if strings.HasPrefix(storeURL, "postgres") {
		key = "sslrootcert"
	}
	q.Set(key, ca)
	u.RawQuery = q.Encode()
	return u.String()
}
