package keyvalue_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/examples/keyvalue"
)

func TestMain(m *testing.M) { drivertest.Main(m) }

func TestConformance(t *testing.T) {
	var requests atomic.Int64
	store := &keyvalue.Server{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		store.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	url := "keyvalue://" + strings.TrimPrefix(server.URL, "http://") + "?poll=50ms"
	drivertest.Run(t, drivertest.Harness{
		Open: func(t testing.TB) driver.Backend {
			b, err := driver.Open(t.Context(), url, "keyvalue")
			if err != nil {
				t.Fatal(err)
			}
			return b
		},
		URL:    url,
		TTL:    3 * time.Second,
		Ops:    requests.Load,
		AtOnce: 128, // each renewal is a request
	})
}
