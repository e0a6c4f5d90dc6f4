// Package promhasp counts what a hasp client does, for Prometheus.
//
//	metrics := promhasp.New(promhasp.Options{})
//	prometheus.MustRegister(metrics)
//	client, err := hasp.Open(ctx, url, hasp.WithObserver(metrics))
//
// Lock names are not labels unless [Options].Name makes them so: a name per order would be a
// time series per order, and several of most metrics: every result and every reason of a loss
// is counted from 0 on, so that rate and increase see the first of its kind.
//
// docs/grafana/hasp.json is a dashboard of these metrics. Package otelhasp measures the same
// for OpenTelemetry.
package promhasp
