package backends

import (
	"fmt"
	"net/http"
	"path/filepath"
	"testing"
	"time"
)

// Prometheus is a server that collects metrics.
type Prometheus struct {
	*Process
	Addr string // host:port of its HTTP API
}

// StartPrometheus starts a server for this test alone that collects /metrics from each of
// the targets (host:port), five times a second.
func StartPrometheus(tb testing.TB, targets ...string) *Prometheus {
	tb.Helper()
	return private(tb, func() (*Prometheus, error) { return startPrometheus(targets) }, prometheus)
}

func startPrometheus(targets []string) (*Prometheus, error) {
	ports, release, err := reservePorts(1)
	if err != nil {
		return nil, err
	}
	p := &Prometheus{Addr: local(ports[0])}
	dir, err := newDir("prometheus", nil)
	if err != nil {
		return nil, err
	}
	lines := []string{
		"global:", "  scrape_interval: 200ms", "  scrape_timeout: 200ms",
		"scrape_configs:", "  - job_name: test", "    static_configs:", "      - targets:",
	}
	for _, t := range targets {
		lines = append(lines, fmt.Sprintf("          - %q", t))
	}
	file := filepath.Join(dir, "prometheus.yml")
	if err := writeFile(file, nil, lines...); err != nil {
		return nil, err
	}
	p.Process, err = startProcess(command{
		name: "prometheus " + p.Addr, dir: dir, release: release, stop: terminate,
		argv: []string{
			prometheus.path(0), "--config.file=" + file, "--storage.tsdb.path=" + filepath.Join(dir, "data"),
			"--web.listen-address=" + p.Addr, "--log.level=warn",
		},
		ready: p.ready,
	})
	return p, err
}

// ready asks whether it answers queries: it listens before it has read its data.
func (p *Prometheus) ready() error {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 2 * time.Second}
	reply, err := client.Get("http://" + p.Addr + "/-/ready")
	if err != nil {
		return err
	}
	if err := reply.Body.Close(); err != nil {
		return err
	}
	if reply.StatusCode != http.StatusOK {
		return fmt.Errorf("prometheus %s: %s", p.Addr, reply.Status)
	}
	return nil
}
