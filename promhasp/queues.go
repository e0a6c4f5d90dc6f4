package promhasp

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hasplock/hasp"
)

// Queues reads the queues of some locks whenever Prometheus asks: who waits for them on all
// machines, not only here. Name the few that matter; each costs a request per scrape.
//
// A queue that cannot be read within timeout (0: 5 s) leaves hasp_queue_up at 0 and has no
// numbers, rather than old ones.
func Queues(c *hasp.Client, timeout time.Duration, names ...string) prometheus.Collector {
	if timeout <= 0 {
		timeout = 5 * time.Second
	}
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
	ctx, cancel := context.WithTimeout(context.Background(), q.timeout)
	defer cancel()
	store := q.client.Backend().String()
	for _, name := range q.names {
		gauge := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, store, name)
		}
		queue, err := q.client.Inspect(ctx, name)
		if err != nil {
			gauge(queueUp, 0)
			continue
		}
		oldest := 0.0
		if len(queue.Waiters) > 0 {
			oldest = max(0, time.Since(queue.Waiters[0].Since).Seconds())
		}
		gauge(queueUp, 1)
		gauge(queueHolders, float64(len(queue.Holders)))
		gauge(queueWaiters, float64(len(queue.Waiters)))
		gauge(queueOldest, oldest)
	}
}
