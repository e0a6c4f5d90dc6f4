package exporter

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/hasplock/hasp/internal/httpapi"
)

// Handler serves /metrics, and /healthz, which answers as long as the process does: whether the
// store answers is a metric, and no reason to start the exporter again.
func (e *Exporter) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", e.metrics)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok\n")) // to a scraper that may have gone
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// At an address of this machine alone only a page in a browser here asks by another name,
		// which leads to this machine for the purpose (DNS rebinding).
		if at, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && httpapi.Here(at.String()) && !httpapi.Here(r.Host) {
			http.Error(w, "asked by a name that is not this machine's (the header Host)", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func (e *Exporter) metrics(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), patience(r, e.o.Timeout))
	defer cancel()
	text, err := e.Scrape(ctx)
	if text == nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(text)
}

// patience is for how long the scraper waits, less a tenth for the answer's way: what could be read
// by then is worth more than an answer that comes too late.
func patience(r *http.Request, most time.Duration) time.Duration {
	seconds, err := strconv.ParseFloat(r.Header.Get("X-Prometheus-Scrape-Timeout-Seconds"), 64)
	if err != nil || !(seconds > 0 && seconds < most.Seconds()) {
		return most
	}
	return time.Duration(seconds * 0.9 * float64(time.Second))
}
