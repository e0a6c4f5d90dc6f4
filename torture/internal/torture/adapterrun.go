//go:build unix

package torture

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/history"
)

// open connects to the store; an adapter does so by itself.
func (r *run) open(ctx context.Context) (err error) {
	if r.Adapter == "" {
		r.client, err = r.Open(ctx, r.Store, hasp.WithTTL(r.TTL))
	}
	return err
}

func (r *run) close() {
	if r.client != nil {
		_ = r.client.Close()
	}
}

// traits are hasp's promises for the store. An adapter has made none: it is judged by what no lock
// may do.
func (r *run) traits() driver.Traits {
	if r.client == nil {
		return driver.Traits{}
	}
	return r.client.Traits()
}

// storeName is the store without its secrets.
func (r *run) storeName() string {
	if r.client != nil {
		return r.client.Store()
	}
	u, err := driver.SplitURL(r.Store)
	if err != nil {
		return "" // Disturbable has refused it
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// lockFile reports whether the control is a lock file with a time: where no fault is known to take
// a lock of this store away.
func (r *run) lockFile() bool {
	if r.Adapter != "" {
		return Disturbable(r.Store) != nil
	}
	return r.traits().Liveness == driver.ProcessBound
}

// take locks a name once and releases it, past all proxies. Of an adapter the grant alone counts: on
// a busy machine it may have lost the lock by the time it releases it.
func (r *run) take(ctx context.Context, name string) error {
	if r.Adapter != "" {
		a, err := r.grantTo(ctx, name)
		if err == nil {
			_, _ = a.ask(ctx, r.ttl+30*time.Second, "unlock", "")
			a.end()
		}
		return err
	}
	l, err := r.client.Mutex(name).Lock(ctx)
	if err != nil {
		return err
	}
	return l.Release(ctx)
}

// grantTo starts an adapter and has it granted the lock.
func (r *run) grantTo(ctx context.Context, name string) (*adapter, error) {
	a, err := startAdapter(ctx, r.starter, adapterTask{r.Adapter, r.Store, r.TTL}, true)
	if err != nil {
		return nil, err
	}
	line, err := a.ask(ctx, r.ttl+30*time.Second, "lock", name)
	if err == nil {
		_, err = grant(line)
	}
	if err != nil {
		a.end()
		return nil, err
	}
	return a, nil
}

// takeByAdapter plays a hold from start to end, to find before anything else an adapter that does
// not know the protocol. A lock that was held for a TTL, since this machine ran
// something else, may rightly have been lost: that says nothing of the adapter, and another hold is
// played.
func (r *run) takeByAdapter(ctx context.Context, name string) error {
	for try := 1; ; try++ {
		took, err := r.playHold(ctx, name)
		if err == nil || took < r.ttl || try == 3 {
			return err
		}
	}
}

// playHold returns how long the lock was held at most.
func (r *run) playHold(ctx context.Context, name string) (took time.Duration, err error) {
	began := time.Now()
	defer func() { took = time.Since(began) }()
	a, err := r.grantTo(ctx, name)
	if err != nil {
		return 0, err
	}
	defer a.end()
	line, err := a.ask(ctx, r.ttl+30*time.Second, "check", "")
	if err != nil {
		return 0, err
	}
	if !is(line, "held") && !is(line, "none") {
		return 0, unexpected(line, "check", `"held" or "none" right after the lock was granted`)
	}
	if line, err = a.ask(ctx, r.ttl+30*time.Second, "unlock", ""); err != nil {
		return 0, err
	}
	if !is(line, "ok") {
		return 0, unexpected(line, "unlock", `"ok" right after the lock was granted`)
	}
	return 0, nil
}

// givesTokens reports whether an adapter has ever given a token. It then has to give each grant
// one.
func givesTokens(ours history.History) bool {
	for i := range ours {
		if ours[i].Token > 0 {
			return true
		}
	}
	return false
}

// adapterEnded notes that an adapter of a worker has ended by itself.
func (r *run) adapterEnded(why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ends++
	r.lastEnd = why
}

// late notes that an adapter has stood still.
func (w *worker) late(s Stall) {
	s.Client = w.Client
	if err := appendLine(filepath.Join(w.Dir, stalls), s); err != nil {
		w.broken(err)
	}
}

// useAdapters starts one adapter for each name of a worker, all at once.
func (w *worker) useAdapters(names []string) error {
	w.adapterSlots = map[string]*adapterSlot{}
	starter := newStarter()
	errs := make(chan error, len(names))
	for _, name := range names {
		s := &adapterSlot{
			task: adapterTask{w.Adapter, w.Store, w.Ask}, name: name, starter: starter, broken: w.broken, late: w.late, patient: w.Patient,
			ended: func(why error) { w.say(reply{Ended: fmt.Sprintf("%s: %v", w.Client, why)}) },
		}
		w.adapterSlots[name] = s
		go func() {
			var err error
			s.now, err = startAdapter(w.quit, starter, s.task, false)
			if w.Patient && errors.Is(err, errEnded) {
				err = nil // it is started again when it is to lock
			}
			errs <- err
		}()
	}
	for range names {
		if err := <-errs; err != nil {
			return err // the others end with this process
		}
	}
	return nil
}

// address has the hosts of a store's URL with their ports, and commas between: a shell script has
// no parser of URLs.
func address(storeURL string) string {
	u, err := driver.SplitURL(storeURL)
	if err != nil {
		return ""
	}
	return strings.Join(targets(u), ",")
}
