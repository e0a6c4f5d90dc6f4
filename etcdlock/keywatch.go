package etcdlock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/hasplock/hasp/driver/kit/signal"
)

// watches are those of a session, each on one key: a blocker's, or that of an entry of ours, since
// a renewed lease does not prove that its keys are there. Each is a watch of clientv3, which keeps
// them all on one stream and, when that breaks, resumes each where it was.
//
// A message of a watch may fail to come. So the keys are looked for as well: see keycheck.go.
//
// A lock that is held for a millisecond needs no watch on its key, and would pay two messages and a
// read for it. So the key of an entry is watched when it has been there for watchAfter; a deletion
// before that is found then. (A release finds it in any case.)
type watches struct {
	session *session
	look    signal.Signal // for checkLoop

	mu        sync.Mutex
	watcher   clientv3.Watcher
	made      time.Time          // when watcher was
	letGo     context.CancelFunc // ends what keeps its stream open
	all       map[*watch]struct{}
	kept      map[string]*watch // by key: those that no ticket needs at the moment; see takeKept
	renewals  int
	unchecked []*watch // whose keys are to be looked for
}

// watch is for the deletion of one key, or for its changes too.
type watch struct {
	key     string
	changes bool
	end     context.CancelFunc

	// What follows is guarded by the mu of watches.
	to    *ticket // nil: it is kept, or has ended
	from  int64   // the revision at which it begins; 0: now
	since int64   // what happens after this revision is told; 0: it is not established
	told  int64   // the latest revision of a message
	idle  uint8   // while it is kept: messages and renewals, counted to mostIdle
}

const (
	watchAfter  = 20 * time.Millisecond
	checkAtOnce = 64                     // keys in one read; etcd allows 128 operations
	leastPause  = 500 * time.Millisecond // before a watch that was refused is asked for again
	mostPause   = 30 * time.Second
	freshToken  = 5 * time.Second // a watcher that is younger has a good one

	// mostKept bounds what a session keeps. A kept watch costs a message for each use of the key
	// that no entry of ours waits for: so it is ended after mostIdle of these, and a renewal counts
	// as idleRenewal of them.
	mostKept    = 64
	mostIdle    = 4
	idleRenewal = 2
)

// begin begins a watch on w's key for w's ticket, which knows what the key was at the revision
// known. It returns the watch, which may be one that was kept.
func (ws *watches) begin(w *watch, known int64) *watch {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if k := ws.takeKept(w, known); k != nil {
		return k
	}
	if ws.watcher == nil && ws.session.startWorker() {
		go ws.checkLoop()
		ws.renew()
	}
	ws.start(w)
	return w
}

// start is called with mu.
func (ws *watches) start(w *watch) {
	var ctx context.Context
	ctx, w.end = context.WithCancel(clientv3.WithRequireLeader(ws.session.ctx))
	if !ws.session.startWorker() {
		return
	}
	if ws.all == nil {
		ws.all = map[*watch]struct{}{}
	}
	ws.all[w] = struct{}{}
	go ws.run(ctx, w)
}

// run keeps a watch until it is ended. One that the server does not keep has a separate pause
// that grows: permissions come back as they go.
func (ws *watches) run(ctx context.Context, w *watch) {
	defer ws.session.workers.Done()
	for pause := leastPause; ctx.Err() == nil; pause = min(2*pause, mostPause) {
		established, compacted := ws.follow(ctx, w)
		ws.mu.Lock()
		w.from, w.since = 0, 0
		to := w.to
		if to == nil {
			ws.drop(w) // none misses it
		}
		ws.mu.Unlock()
		if established {
			pause = leastPause
		}
		if compacted || to == nil {
			continue // it was to begin, or had fallen, too far behind: it begins anew, now
		}
		to.watchFailed()
		sleep(ctx, pause/2+rand.N(pause/2))
	}
	ws.mu.Lock()
	delete(ws.all, w)
	ws.mu.Unlock()
}

// follow passes on what one watch of clientv3's tells, to its end.
func (ws *watches) follow(ctx context.Context, w *watch) (established, compacted bool) {
	ws.mu.Lock()
	watcher, from := ws.watcher, w.from
	ws.mu.Unlock()
	opts := []clientv3.OpOption{clientv3.WithCreatedNotify(), clientv3.WithRev(from)}
	if !w.changes {
		opts = append(opts, clientv3.WithFilterPut())
	}
	for resp := range watcher.Watch(ctx, w.key, opts...) {
		if resp.Err() != nil && !established && resp.CompactRevision == 0 {
			ws.refused(watcher)
		}
		established = established || resp.Created
		compacted = compacted || resp.CompactRevision != 0
		to, since := ws.note(w, &resp)
		if to == nil {
			continue
		}
		if resp.Created {
			to.established(w, since)
		}
		for _, ev := range resp.Events {
			if ev.Type == mvccpb.Event_DELETE {
				to.deleted(w, ev.Kv.ModRevision)
			} else {
				to.changed(w, ev.Kv)
			}
		}
	}
	return established, compacted
}

// note notes a message, and returns in the same step for whom it is: the ticket that takes the
// watch over later finds the note, and is not called for what came before.
func (ws *watches) note(w *watch, resp *clientv3.WatchResponse) (to *ticket, since int64) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if resp.Created {
		w.since = resp.Header.Revision
		if w.from != 0 {
			w.since = w.from - 1
		}
	}
	for _, ev := range resp.Events {
		w.told = max(w.told, ev.Kv.ModRevision)
	}
	ws.addIdle(w, len(resp.Events))
	return w.to, w.since
}

// Those who lock a name again and again stand behind the same client each time, and that client's
// key is the same each time (slots.go). So a watch that has done its work is kept for the next
// entry that wants it: without, contention has eight messages for an acquisition in the place of
// three, and loses more than a quarter of its pace. A kept watch tells the next ticket all that it
// must know:
//
//   - The server tells of every deletion after w.since, once, to the ticket of the time. The new
//     one has read the key at the revision known. If since is later, a deletion may have come in
//     between: then the watch is not taken.
//   - What was told before the new ticket came, to the one before it or to none, is in w.told. If
//     that is later than known, the news was missed: then the watch is not taken either. So it is
//     where a message overtakes the answer to the read.
//   - A deletion up to known, told late by a member that lags, is of an earlier use of the key.
//     The view passes over it by its revision, whenever the watch began (view.go).
//   - A key that is deleted and made again is, by these rules, seen anew by the read, or told of.
//     What moves an entry to another lease, or makes it smaller, deletes nothing.
//   - One that is not established, or not any more, is not kept.

// takeKept returns the kept watch of w's key for w's ticket, if there is one that has told, or will
// tell, all that happened after the revision known. The caller has mu.
//
// Those that tell of changes are for readers and permits, and are not kept: a change is told by
// its content, which a note of its revision does not stand for.
func (ws *watches) takeKept(w *watch, known int64) *watch {
	k := ws.kept[w.key]
	if k == nil || w.changes {
		return nil
	}
	if max(k.since, k.told) > known {
		ws.drop(k)
		return nil
	}
	delete(ws.kept, k.key)
	k.to = w.to
	return k
}

// release ends a watch for its ticket, which is not called any more, but for a call that is under
// way.
func (ws *watches) release(w *watch) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w.to, w.idle = nil, 0
	if w.changes || w.since == 0 || ws.kept[w.key] != nil || len(ws.kept) >= mostKept {
		w.end()
		return
	}
	if ws.kept == nil {
		ws.kept = map[string]*watch{}
	}
	ws.kept[w.key] = w
}

// addIdle counts what a watch tells while no ticket listens. The caller has mu.
func (ws *watches) addIdle(w *watch, n int) {
	if w.to == nil {
		if w.idle = uint8(min(int(w.idle)+n, mostIdle)); w.idle == mostIdle {
			ws.drop(w)
		}
	}
}

// drop ends a watch that no ticket has. The caller has mu.
func (ws *watches) drop(w *watch) {
	if ws.kept[w.key] == w {
		delete(ws.kept, w.key)
	}
	w.end()
}

// refused is called when the server has refused a watch. Its stream's token may have expired, and
// only a new stream gets a new one. Older servers say of both that permission is denied. So a new
// stream is opened, once in a while, for those that are asked for from now on; the others stay
// where they are, and their stream ends with the last of them.
func (ws *watches) refused(watcher clientv3.Watcher) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.watcher == watcher && time.Since(ws.made) > freshToken {
		ws.renew()
	}
}

// renew makes another watcher. The caller has mu.
func (ws *watches) renew() {
	s := ws.session
	ws.watcher = clientv3.NewWatchFromWatchClient(&streams{WatchClient: s.backend.watch, again: ws.checkAll}, s.backend.client)
	ws.made = time.Now()
	if ws.letGo != nil {
		ws.letGo()
	}
	var ctx context.Context
	ctx, ws.letGo = context.WithCancel(clientv3.WithRequireLeader(s.ctx))
	if s.startWorker() {
		go keepOpen(ctx, &s.workers, ws.watcher, s.epoch.key)
	}
}

// keepOpen watches for the deletion of a key that is never deleted: clientv3 closes a stream that
// has no watch.
func keepOpen(ctx context.Context, workers *sync.WaitGroup, watcher clientv3.Watcher, key string) {
	defer workers.Done()
	for ; ctx.Err() == nil; sleep(ctx, mostPause) {
		for range watcher.Watch(ctx, key, clientv3.WithCreatedNotify(), clientv3.WithFilterPut()) {
		}
	}
}

// streams opens the streams of a watcher.
type streams struct {
	pb.WatchClient
	opened atomic.Bool
	again  func() // called at every stream but the first
}

func (s *streams) Watch(ctx context.Context, opts ...grpc.CallOption) (pb.Watch_WatchClient, error) {
	stream, err := s.WatchClient.Watch(ctx, opts...)
	if err == nil && s.opened.Swap(true) {
		s.again()
	}
	return stream, err
}

// close ends all that was begun, of which the session's context is over.
func (ws *watches) close() {
	ws.mu.Lock()
	watcher := ws.watcher
	ws.mu.Unlock()
	if watcher != nil {
		_ = watcher.Close() // the context's error
	}
}

// Watch follows a name. Between two messages of etcd's that something has changed, it
// costs nothing.
func (b *Backend) Watch(ctx context.Context, name string, changed func()) error {
	all := b.queue(name).all()
	// The watch of clientv3 resumes by itself after a lost connection, from where it was.
	w := clientv3.NewWatcher(b.client)
	defer w.Close()
	events := w.Watch(clientv3.WithRequireLeader(ctx), all.from, clientv3.WithRange(all.to), clientv3.WithCreatedNotify())
	for resp := range events {
		if err := resp.Err(); err != nil {
			return explain(ctx, "watch", err)
		}
		changed()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return fmt.Errorf("etcd: the watch has ended")
}
