//go:build unix

package s3lock_test

import (
	"flag"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testtier"
	"github.com/hasplock/hasp/s3lock"
	"github.com/hasplock/hasp/tests/internal/haspbin"
)

var onMoto = flag.Bool("moto", false, "run the suite on moto")

// Another server of the protocol, in Python: its answers differ in what gofakes3's writer has not
// thought of. The suite is that of TestConformance. Beside other tests this server leaves requests
// without an answer for longer than a TTL.
func TestConformanceOnMoto(t *testing.T) {
	testtier.Long(t)
	if !*onMoto {
		t.Skip("moto needs a quiet machine for six minutes; make nightly runs it")
	}
	addr := backends.StartMoto(t)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+addr+"/locks", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	server := httptest.NewServer(oneWriteAtATime(addr))
	t.Cleanup(server.Close)
	if answer.StatusCode != http.StatusOK {
		t.Fatalf("the bucket: %s", answer.Status)
	}
	store := "s3://locks/a?path_style=true&region=us-east-1&poll=50ms&endpoint=" + server.URL
	drivertest.Run(t, drivertest.Harness{
		Open: func(t testing.TB) driver.Backend { return open(t, store) },
		URL:  store,
		// An answer takes it milliseconds of processor time: 1,000 names are not to be held nor listed
		// too often.
		TTL:    3 * s3lock.MinTTL,
		AtOnce: 128,
		Names:  200,
		// It would have to answer renewals in time for a minute, beside all other tests.
		Idle: drivertest.Idle{Client: -1},
	})
}

// oneWriteAtATime is a way to moto, which looks at the conditions and then writes: with two writes at
// once both may succeed, as the suite has found. Its protocol is tested here, not that.
func oneWriteAtATime(addr string) http.Handler {
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: addr})
	var writes sync.Mutex
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			writes.Lock()
			defer writes.Unlock()
		}
		proxy.ServeHTTP(w, r)
	})
}

// hasp-torture: clients that are stopped, cut off, killed, and robbed of answers. A run whose
// control is not caught says that it proves nothing, and fails.
func TestTorture(t *testing.T) {
	testtier.Long(t)
	lasts := "100s" // three faults of each kind for the control
	if d := os.Getenv("HASP_S3_TORTURE"); d != "" {
		lasts = d
	}
	s := serve(t, nil)
	run := exec.CommandContext(t.Context(), haspbin.BuildTorture(t), "--for", lasts, "--ttl", s3lock.MinTTL.String(), s.url("torture")+"&poll=100ms")
	run.Env = clean()
	out, err := run.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
	if !strings.Contains(string(out), "control") {
		t.Error("it does not speak of its control")
	}
}
