package exporter

import (
	"context"
	"net/http"
	"strconv"
	"time"
)

// Handler serves /metrics, and /healthz, which answers as long as the process does: whether the store
// answers is a metric, and no reason to start the exporter again.
func (e *Exporter) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", e.metrics)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok\n")) // to a scraper that may have gone
	})
	return mux
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

// patience is for how long the scraper waits, less a tenth for the answer's way: what could be read by
// then is worth more than an answer that comes too late.
func patience(r *http.Request, most time.Duration) time.Duration {
	seconds, err := strconv.ParseFloat(r.Header.Get("X-Prometheus-Scrape-Timeout-Seconds"), 64)
	if err != nil || !(seconds > 0 && seconds < most.Seconds()) {
		return most
	}
	return time.Duration(seconds * 0.9 * float64(time.Second))
}
