package s3lock_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
	"github.com/hasplock/hasp/s3lock"
)

// failingObject is a server that does not answer requests for one object, or with 502, if asked to.
func failingObject(t *testing.T, object string) (s *server, failing *atomic.Int64) {
	failing = &atomic.Int64{}
	over := make(chan struct{})
	s = serve(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			status := int(failing.Load())
			if status == 0 || !strings.HasSuffix(r.URL.Path, "/"+object) {
				h.ServeHTTP(w, r)
				return
			}
			if status == http.StatusBadGateway {
				w.WriteHeader(status)
				return
			}
			select {
			case <-over:
			case <-r.Context().Done():
			}
		})
	})
	t.Cleanup(func() { close(over) }) // before the server waits for its requests
	return s, failing
}

const hangs = -1

// An object whose requests hang, or fail, takes none of the client's other locks, and makes no storm
// of renewals.
func TestOneObjectFails(t *testing.T) {
	testtier.Long(t)
	for _, status := range []int{hangs, http.StatusBadGateway} {
		for _, failing := range []string{"n0", "new"} {
			s, fails := failingObject(t, failing)
			c := testkit.ClientOn(t, open(t, s.url("x")), hasp.WithTTL(s3lock.MinTTL))
			var leases []*hasp.Lease
			for _, name := range []string{"n0", "n1", "n2"} {
				l, err := c.Mutex(name).Lock(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				leases = append(leases, l)
			}
			fails.Store(int64(status))
			go c.Mutex("new").Lock(t.Context())
			before := s.requests.Load()
			time.Sleep(3 * s3lock.MinTTL)
			requests := s.requests.Load() - before
			for i, l := range leases {
				if want := i > 0 || failing != "n0"; l.Held() != want {
					t.Errorf("%s answers %d: n%d is held: %t", failing, status, i, l.Held())
				}
			}
			t.Logf("%s answers %d: %d requests", failing, status, requests)
			if requests > 100 { // 27 for the renewals of three locks in three TTLs, and the backed off ones of the fourth
				t.Errorf("%s answers %d: %d requests", failing, status, requests)
			}
			fails.Store(0)
		}
	}
}

// Credentials that hang, as those of a program or a container do, hold no caller up.
func TestCredentialsHang(t *testing.T) {
	s := serve(t, nil)
	slow := &slowCredentials{release: make(chan struct{})}
	client, err := minio.New(strings.TrimPrefix(s.URL, "http://"), &minio.Options{
		Creds: credentials.New(slow), Region: "us-east-1", BucketLookup: minio.BucketLookupPath, MaxRetries: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	b, err := s3lock.New(t.Context(), client, "locks", nil)
	if err != nil {
		t.Fatal(err)
	}
	c := testkit.ClientOn(t, b, hasp.WithTTL(time.Hour)) // no bound of the driver's own ends a call in time
	slow.hangs.Store(true)
	defer close(slow.release)
	quick := func(what string, call func(context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- call(ctx) }()
		if err := testkit.Await(t, "the end of "+what, ended); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", what, err)
		}
	}
	quick("Lock", func(ctx context.Context) error { _, err := c.Mutex("n").Lock(ctx); return err })
	quick("Inspect", func(ctx context.Context) error { _, err := c.Inspect(ctx, "n"); return err })
	quick("New", func(ctx context.Context) error { _, err := s3lock.New(ctx, client, "locks", nil); return err })
}

// slowCredentials are those of a provider that does not look at contexts.
type slowCredentials struct {
	hangs   atomic.Bool
	release chan struct{}
}

func (s *slowCredentials) Retrieve() (credentials.Value, error) {
	if s.hangs.Load() {
		<-s.release
	}
	return credentials.Value{AccessKeyID: "test", SecretAccessKey: "secret", SignerType: credentials.SignatureV4}, nil
}

func (s *slowCredentials) RetrieveWithCredContext(*credentials.CredContext) (credentials.Value, error) {
	return s.Retrieve()
}

func (s *slowCredentials) IsExpired() bool { return true } // asked before each request
