package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// job is the task of a worker process.
type job struct {
	Store      string   `json:"store"`
	Who        string   `json:"who"`
	Endpoint   endpoint `json:"endpoint"`
	First      int      `json:"first"` // number of its first contender
	Contenders int      `json:"contenders"`
	Name       string   `json:"name"`
}

// result is a worker's answer; without turns it says that its clients are open.
type result struct {
	Turns []turn        `json:"turns,omitempty"`
	CPU   time.Duration `json:"cpu,omitempty"`
	Error string        `json:"error,omitempty"`
}

// now is a clock that all processes of the machine share.
func now() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

// work is a worker's main: open clients, say so, wait to be told when, contend, tell.
func work(text string) error {
	out := json.NewEncoder(os.Stdout)
	w, err := openContenders(text)
	if err != nil {
		return out.Encode(result{Error: err.Error()})
	}
	if err := out.Encode(result{}); err != nil {
		return err
	}
	var when [2]int64
	if err := json.NewDecoder(os.Stdin).Decode(&when); err != nil {
		return err
	}
	time.Sleep(time.Duration(when[0] - now()))
	cpu := processorTime()
	turns, err := w.contend(when[1])
	r := result{Turns: turns, CPU: processorTime() - cpu}
	if err != nil {
		r.Error = err.Error()
	}
	return out.Encode(r)
}

// contenders are those of one worker.
type contenders struct {
	job
	told    bool
	clients []client
}

func openContenders(text string) (*contenders, error) {
	w := &contenders{}
	if err := json.Unmarshal([]byte(text), &w.job); err != nil {
		return nil, err
	}
	chosen, err := pick(w.Store, stores, func(s store) string { return s.name })
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, c := range chosen[0].contestants(w.Endpoint) {
		if c.name != w.Who {
			continue
		}
		w.told = c.told
		for i := range w.Contenders {
			client, err := c.open(ctx)
			if err == nil {
				err = client.cycle(ctx, fmt.Sprint(w.Name, "-warm-", w.First+i))
			}
			if err != nil {
				return nil, fmt.Errorf("contender %d: %w", w.First+i, err)
			}
			w.clients = append(w.clients, client)
		}
		return w, nil
	}
	return nil, fmt.Errorf("%s has no contestant %q", w.Store, w.Who)
}

// contend has all contenders lock, hold and unlock until the time is over. A contender that still
// waits then is left: with some contestants it might wait for ever.
func (w *contenders) contend(until int64) (all []turn, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(until-now()))
	defer cancel()
	var mu, pass sync.Mutex
	var over atomic.Bool
	take := func(i int, c client) {
		if w.told {
			pass.Lock()
			defer pass.Unlock()
		}
		if ctx.Err() != nil {
			return
		}
		t := turn{Who: w.First + i, Asked: now()}
		unlock, lockErr := c.lock(ctx, w.Name)
		t.Got = now()
		if lockErr == nil {
			time.Sleep(time.Millisecond)
			t.Left = now()
			lockErr = unlock()
		}
		mu.Lock()
		defer mu.Unlock()
		switch {
		case over.Load():
		case lockErr == nil:
			all = append(all, t)
		case ctx.Err() == nil && err == nil:
			err = lockErr
		}
	}
	var wg sync.WaitGroup
	for i, c := range w.clients {
		wg.Go(func() {
			for ctx.Err() == nil {
				take(i, c)
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Duration(until-now()) + time.Second):
	}
	mu.Lock()
	defer mu.Unlock()
	over.Store(true)
	return all, err
}
