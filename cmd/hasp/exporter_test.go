//go:build unix && !noexporter

package main

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	lib "github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// startExporter starts the command, and returns the address of its metrics. It must end with 0 when it
// is told to.
func startExporter(t *testing.T, store string, args ...string) (addr string) {
	t.Helper()
	c := exec.Command("hasp", append([]string{"exporter", "--store", store, "--listen", "127.0.0.1:0"}, args...)...)
	c.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	stderr, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		if err := c.Wait(); err != nil {
			t.Errorf("hasp exporter: %v", err)
		}
	})
	lines := bufio.NewReader(stderr)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("hasp exporter: %v", err)
		}
		if _, rest, ok := strings.Cut(line, " at http://"); ok {
			return strings.TrimSuffix(strings.TrimSpace(rest), "/metrics")
		}
	}
}

// The dashboard's panels of the exporter, asked of a real Prometheus that scrapes a real exporter of a
// real Redis: each shows what has happened.
func TestExporterOnTheDashboard(t *testing.T) {
	server := backends.StartRedis(t, backends.RedisOptions{})
	c := testkit.Client(t, server.URL())
	deploy := testkit.Lock(t, c, "deploy")
	testkit.Lock(t, c, "export")
	testkit.Lock(t, c, "report") // beyond the limit
	p := backends.StartPrometheus(t, startExporter(t, server.URL(), "--max-names", "2"))
	p.Has(t, testkit.Patience, `hasp_queue_holders{name="deploy"} == 1`,
		"hasp_quarantine_seconds == 0")

	next := testkit.Waiting(t, "deploy", func(o lib.Option) *lib.Client { return testkit.Client(t, server.URL(), o) })
	p.Has(t, testkit.Patience, `hasp_queue_waiters{name="deploy"} == 1`, `hasp_queue_oldest_waiter_seconds{name="deploy"} > 0`)
	q, err := c.Inspect(t.Context(), "deploy")
	if err == nil {
		err = c.Evict(t.Context(), "deploy", q.Holders[0].ID, "test")
	}
	if err != nil {
		t.Fatal(err)
	}
	testkit.Await(t, "the eviction", deploy.Context().Done())
	testkit.Granted(t, next)
	var shown []string
	exporters := map[string]bool{}
	for _, m := range testkit.DocumentedMetrics(t, "../../docs/METRICS.md") {
		exporters[m.Name] = m.From == "exporter" || m.Name == "hasp_queue_holders"
	}
	for _, panel := range testkit.Dashboard(t, "../../docs/grafana/hasp.json") {
		for _, target := range panel.Targets {
			metric := testkit.Metrics(target.Expr)[0]
			if exporters[metric] && metric != "hasp_quarantine_seconds" {
				shown = append(shown, "("+testkit.Shown(target.Expr)+") > 0")
			}
		}
	}
	if len(shown) < 8 {
		t.Fatalf("the dashboard asks for too little: %q", shown)
	}
	p.Has(t, testkit.Patience, shown...)
	// The control: what has not happened is not shown.
	if got, err := p.Query("hasp_queue_up == 0 or hasp_quarantine_seconds > 0"); len(got) != 0 || err != nil {
		t.Errorf("%v, %v", got, err)
	}

	// A server that forgets: the first in line is a waiter until the server grants again.
	redisDo(t, server, "FLUSHALL")
	later := testkit.Waiting(t, "deploy", func(o lib.Option) *lib.Client { return testkit.Client(t, server.URL(), o) })
	p.Has(t, testkit.Patience, `hasp_quarantine_seconds > 0 and on() hasp_queue_holders{name="deploy"} == 0 and on() hasp_queue_waiters{name="deploy"} > 0`)
	testkit.Release(t, testkit.Granted(t, later))
	p.Has(t, testkit.Patience, "hasp_quarantine_seconds == 0")
	// The server may go: that is told, and the exporter goes on.
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	p.Has(t, testkit.Patience, "hasp_exporter_success == 0", "up == 1")
}

// A store that is down when the exporter starts is no reason to end, and its password no label.
func TestExporterOfAStoreThatIsDown(t *testing.T) {
	reply, err := http.Get("http://" + startExporter(t, "redis://user:hunter2@127.0.0.1:1") + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err != nil || !strings.Contains(string(text), `hasp_exporter_success{store="redis://127.0.0.1:1"} 0`) || strings.Contains(string(text), "hunter2") {
		t.Errorf("%v, %s", err, text)
	}
}
