package backends

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/serverprocess"
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
	ports, release, err := serverprocess.ReservePorts(1)
	if err != nil {
		return nil, err
	}
	p := &Prometheus{Addr: serverprocess.Local(ports[0])}
	dir, err := serverprocess.NewDir("prometheus", nil)
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
	if err := serverprocess.WriteFile(file, nil, lines...); err != nil {
		return nil, err
	}
	p.Process, err = serverprocess.Start(serverprocess.Command{
		Name: "prometheus " + p.Addr, Dir: dir, Release: release, Stop: serverprocess.Terminate,
		Argv: []string{
			prometheus.path(0), "--config.file=" + file, "--storage.tsdb.path=" + filepath.Join(dir, "data"),
			"--web.listen-address=" + p.Addr, "--log.level=warn",
		},
		Ready: p.ready,
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

// Query returns the values that it has for an expression now, as numbers.
func (p *Prometheus) Query(expr string) (values []float64, err error) {
	reply, err := http.Get("http://" + p.Addr + "/api/v1/query?query=" + url.QueryEscape(expr))
	if err != nil {
		return nil, err
	}
	defer reply.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct {
			Result []struct{ Value [2]any }
		}
	}
	if err := json.NewDecoder(reply.Body).Decode(&answer); err != nil || answer.Status != "success" {
		return nil, fmt.Errorf("%s: %s %s, %v", expr, answer.Status, answer.Error, err)
	}
	for _, r := range answer.Data.Result {
		text, _ := r.Value[1].(string)
		if v, err := strconv.ParseFloat(text, 64); err == nil && !math.IsNaN(v) {
			values = append(values, v)
		}
	}
	return values, nil
}

// Has waits until each of the expressions has had a value: the next reading of the metrics is at hand.
func (p *Prometheus) Has(tb testing.TB, patience time.Duration, exprs ...string) {
	tb.Helper()
	exprs = slices.Clone(exprs)
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		exprs = slices.DeleteFunc(exprs, func(e string) bool {
			values, err := p.Query(e)
			if err != nil {
				tb.Fatal(err)
			}
			return len(values) > 0
		})
		if len(exprs) == 0 {
			return
		}
		if time.Now().After(end) {
			tb.Fatalf("no data: %s", strings.Join(exprs, "\n"))
		}
	}
}
