package promhasp

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/metering"
)

// Queues reads the queues of some locks whenever Prometheus scrapes: the waiters on all machines,
// not only here. Name the few that matter; each costs a request per scrape.
//
// A queue that cannot be read within timeout (0: 5 s), which bounds all of them together, leaves
// hasp_queue_up at 0 and has no numbers, rather than old ones.
func Queues(c *hasp.Client, timeout time.Duration, names ...string) prometheus.Collector {
	return &queues{client: c, timeout: timeout, names: names}
}

type queues struct {
	client  *hasp.Client
	timeout time.Duration
	names   []string
}

var (
	queueLabels  = []string{"store", "name"}
	queueUp      = prometheus.NewDesc("hasp_queue_up", "1 if the queue could be read.", queueLabels, nil)
	queueHolders = prometheus.NewDesc("hasp_queue_holders", "Entries that hold the lock.", queueLabels, nil)
	queueWaiters = prometheus.NewDesc("hasp_queue_waiters", "Entries that wait for the lock.", queueLabels, nil)
	queueOldest  = prometheus.NewDesc("hasp_queue_oldest_waiter_seconds", "How long the first in line has waited, by its own clock.", queueLabels, nil)
)

// Describe is prometheus.Collector's.
func (q *queues) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{queueUp, queueHolders, queueWaiters, queueOldest} {
		ch <- d
	}
}

// Collect is prometheus.Collector's.
func (q *queues) Collect(ch chan<- prometheus.Metric) {
	store := q.client.Backend().String()
	metering.Lengths(context.Background(), q.client, q.timeout, q.names, func(name string, l metering.Length, err error) {
		gauge := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, store, name)
		}
		if err != nil {
			gauge(queueUp, 0)
			return
		}
		gauge(queueUp, 1)
		gauge(queueHolders, float64(l.Holders))
		gauge(queueWaiters, float64(l.Waiters))
		gauge(queueOldest, l.Oldest.Seconds())
	})
}
