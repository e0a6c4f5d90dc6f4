package otelhasp_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/memlock"
	"github.com/hasplock/hasp/otelhasp"
)

// Many goroutines, clients and readings at once: nothing is counted twice or not at all.
func TestConcurrent(t *testing.T) {
	const clients, goroutines, rounds = 2, 8, 50
	m, reader := measured(t, otelhasp.MetricsOptions{Name: first})
	store := memlock.New()
	var work sync.WaitGroup
	for range clients {
		c := testkit.ClientOn(t, store.Backend(), hasp.WithObserver(m))
		for i := range goroutines {
			work.Go(func() {
				for j := range rounds {
					if err := c.Do(t.Context(), fmt.Sprintf("%d/%d", j%3, i), nothing); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	stop, read := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(read)
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				count(t, reader, "hasp.held")
			}
		}
	}()
	work.Wait()
	close(stop)
	<-read
	expect(t, reader, `
hasp.held{name=0,store=mem://} 0
hasp.held{name=1,store=mem://} 0
hasp.held{name=2,store=mem://} 0
hasp.releases{name=0,result=confirmed,store=mem://} 272
hasp.releases{name=0,result=lost,store=mem://} 0
hasp.releases{name=0,result=unknown,store=mem://} 0
hasp.releases{name=1,result=confirmed,store=mem://} 272
hasp.releases{name=1,result=lost,store=mem://} 0
hasp.releases{name=1,result=unknown,store=mem://} 0
hasp.releases{name=2,result=confirmed,store=mem://} 256
hasp.releases{name=2,result=lost,store=mem://} 0
hasp.releases{name=2,result=unknown,store=mem://} 0
`)
}

// If several goroutines measure the first event of a name at the same moment, all count.
func TestFirstAtOnce(t *testing.T) {
	const goroutines, rounds = 8, 200
	var ready sync.WaitGroup
	m, reader := measured(t, otelhasp.MetricsOptions{Name: func(lock string) string {
		ready.Done()
		ready.Wait()
		return lock
	}})
	var want []string
	for i := range rounds {
		name := fmt.Sprint(i)
		ready.Add(goroutines)
		var done sync.WaitGroup
		for range goroutines {
			done.Go(func() {
				m.Observe(hasp.Event{Kind: hasp.EventAcquired, Context: t.Context(), Backend: "mem://", Name: name})
			})
		}
		done.Wait()
		want = append(want, fmt.Sprintf("hasp.held{name=%s,store=mem://} %d", name, goroutines))
	}
	expect(t, reader, strings.Join(want, "\n"))
}
