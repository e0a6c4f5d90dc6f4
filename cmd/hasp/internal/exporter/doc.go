// Package exporter measures the queues of a store for Prometheus: one process for all locks, beside
// the programs that measure themselves with package promhasp. What both measure has the same names.
//
// It writes Prometheus's text format itself: the client library would cost every hasp run a
// millisecond at its start, for a registry and collectors that are of no use here. The tests have
// Prometheus read what is written.
package exporter
