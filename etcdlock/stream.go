package etcdlock

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// stream is the one watch stream of a session, on which all its watches of single keys
// travel. It speaks etcd's protocol itself: clientv3 keeps a goroutine and several
// channels for each watch, which for ten thousand held locks is 50 MB.
//
// A watch begins "now", and the server says at which revision that was. A waiter that has read
// the key at an older revision must read once more. A watch that begins at the revision
// behind the read would miss nothing by itself; but if any write of any client has come in
// between, etcd serves it by a loop that runs every 100 ms, and a lock that changes hands
// every millisecond would stall for that time, as under etcd's own package. It is
// right for waiters that will have to wait longer than that anyway: see ticket.follow.
//
// When the stream breaks, it is opened anew with every watch begun "now".
type stream struct {
	session *session

	mu      sync.Mutex
	watches map[int64]*watch
	kept    map[string]*watch // by key: those without a listener; see keptwatch.go
	last    int64             // id given to a watch; never used again
	running bool
	up      context.CancelFunc // ends the open stream; nil if there is none
	began   time.Time          // when it was opened
	broken  bool               // the last one did, or could not be opened
	pending []*pb.WatchRequest // to be sent on it
	asked   []int64            // ids of watches to be created on it that have not been answered, in order
	send    chan struct{}      // signals pending; holds one signal, which says all
	heard   bool               // something has come since the last renewal
	probed  time.Time          // when a sign of life was asked for, if it was and nothing has come since
}

// watch is for the deletion of one key, or for its changes too. But for key and changes, the
// stream's lock guards it.
type watch struct {
	id    int64
	key   string
	to    listener // nil: it is kept
	from  int64    // asked to begin at this revision, and not established yet; 0: now
	since int64    // what happens after this revision is told; 0: it is not established
	told  int64    // the latest revision of a message

	// Each lock that is held for long has a watch: so these are small, and together.
	changes  bool
	broken   bool  // a stream has broken, before it was asked for or since
	paused   bool  // refused, and not to be asked for at the moment; see watchrefused.go
	refusals uint8 // in a row
	idle     uint8 // while it is kept: messages and renewals, counted to mostIdle; see ageKept
	age      uint8 // while it has a listener: renewals, counted to 2
}

// listener is told about a watch, by the stream's goroutine: it must not wait. None of the
// stream's locks is held.
type listener interface {
	// established says that deletions after this revision will be reported. again says that a stream
	// has broken, on which it was established or should have been: the servers may have been down.
	established(w *watch, rev int64, again bool)
	// deleted says that the key was deleted at this revision, which may be long ago: before
	// the key was what it is now.
	deleted(w *watch, rev int64)
	// changed says what the key was at a revision, where that was asked for.
	changed(w *watch, now *mvccpb.KeyValue)
	// failed says that an attempt to set up a watch has failed; there will be others.
	failed()
	// doubts says that the watch has had this listener from one renewal to the next.
	doubts()
}

func newStream(s *session) *stream {
	return &stream{session: s, watches: map[int64]*watch{}, kept: map[string]*watch{}, send: make(chan struct{}, 1)}
}

// add watches the key of w, of which the caller says everything but the id, for a listener that
// knows what the key was at the revision known. It returns the watch, which may be one that was kept.
func (st *stream) add(w *watch, known int64) *watch {
	st.mu.Lock()
	defer st.mu.Unlock()
	if k := st.takeKept(w, known); k != nil {
		return k
	}
	st.begin(w)
	if !st.running && st.session.startWorker() {
		st.running = true
		go st.run()
	}
	return w
}

// begin asks for a watch under an id that no other had. The caller has st.mu.
func (st *stream) begin(w *watch) {
	st.last++
	w.id = st.last
	st.watches[w.id] = w
	st.create(w)
}

// forget ends a watch under its id. The caller has st.mu.
func (st *stream) forget(w *watch) {
	delete(st.watches, w.id)
	st.enqueue(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{
		CancelRequest: &pb.WatchCancelRequest{WatchId: w.id},
	}})
}

// enqueue has a request sent if a stream is open; a new one begins with all watches.
func (st *stream) enqueue(r *pb.WatchRequest) {
	if st.up == nil {
		return
	}
	st.pending = append(st.pending, r)
	select {
	case st.send <- struct{}{}:
	default:
	}
}

// create asks for a watch on the open stream. The caller has st.mu.
func (st *stream) create(w *watch) {
	if st.up == nil {
		return
	}
	st.asked = append(st.asked, w.id)
	r := &pb.WatchCreateRequest{Key: []byte(w.key), WatchId: w.id, StartRevision: w.from}
	if !w.changes {
		r.Filters = []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NOPUT}
	}
	st.enqueue(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: r}})
}

// probe is called with every renewal. It asks for a sign of life where nothing has come since
// the last one, and ends a stream that has not answered by the next. A member that hangs, or a
// connection that died silently, would otherwise take as long as gRPC's pings, and a waiter would
// sleep through its turn meanwhile. It takes two or three renewals: one that had to be asked each
// time would be found out sooner by a third of the TTL, and cost each client of a busy lock a
// message per renewal. A stream without watches is ended, too.
func (st *stream) probe() {
	for _, to := range st.grown() {
		to.doubts()
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.ageKept()
	switch {
	case st.up == nil:
	case len(st.watches) == 0:
		st.up()
	case st.heard:
		st.heard, st.probed = false, time.Time{}
	case !st.probed.IsZero():
		st.session.backend.connections.closeSilent(st.probed)
		st.up()
	default:
		st.probed = time.Now()
		st.enqueue(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{
			ProgressRequest: &pb.WatchProgressRequest{},
		}})
	}
}

// longestPause is that between two streams.
const longestPause = 2 * time.Second

// run keeps a stream open as long as there are watches and the session lives.
func (st *stream) run() {
	defer st.session.workers.Done()
	var pause time.Duration
	for st.needed() {
		began := time.Now()
		watched := st.serve()
		st.mu.Lock()
		st.broken = len(st.watches) > 0 // else it was not needed any more
		st.mu.Unlock()
		if watched && time.Since(began) > longestPause {
			pause = 0 // one that ends as soon as it is established shall not be opened all the time
		}
		if !watched {
			// Watching may fail while reading works: for as long as that
			// lasts, the waiters read by themselves at this pace.
			for _, to := range st.listeners() {
				to.failed()
			}
		}
		pause = min(max(2*pause, 20*time.Millisecond), longestPause)
		sleep(st.session.ctx, pause/2+rand.N(pause/2))
	}
}

// needed returns whether run must go on; if not, the next add starts it again.
func (st *stream) needed() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.running = len(st.watches) > 0 && st.session.ctx.Err() == nil
	return st.running
}

func (st *stream) listeners() []listener {
	st.mu.Lock()
	defer st.mu.Unlock()
	list := make([]listener, 0, len(st.watches))
	for _, w := range st.watches {
		if w.to != nil {
			list = append(list, w.to)
		}
	}
	return list
}

// serve opens one stream and reads it to its end. It returns whether any watch was established.
func (st *stream) serve() (watched bool) {
	// A member that lost its leader would keep the stream open and be told of nothing.
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(st.session.ctx))
	defer cancel()
	conn, err := st.session.backend.watch.Watch(ctx, st.session.backend.call...)
	if err != nil {
		return false
	}
	st.mu.Lock()
	st.up, st.began, st.heard, st.probed = cancel, time.Now(), false, time.Time{}
	st.pending, st.asked = nil, nil
	for _, w := range st.watches {
		w.broken = w.broken || st.broken
		if !w.paused {
			st.create(w)
		}
	}
	st.mu.Unlock()

	sent := make(chan struct{})
	go func() {
		defer close(sent)
		defer cancel() // a stream that cannot be written to is useless
		st.sendAll(ctx, conn)
	}()
	defer func() {
		cancel()
		<-sent
		st.mu.Lock()
		st.up, st.pending, st.asked = nil, nil, nil
		st.forgetKept()
		for _, w := range st.watches {
			w.since = 0
			w.from = 0 // it may have been compacted, and refused for that
		}
		st.mu.Unlock()
	}()
	for {
		resp, err := conn.Recv()
		if err != nil {
			return watched
		}
		ok, err := st.dispatch(resp)
		watched = watched || ok
		if err != nil {
			return watched
		}
	}
}

// sendAll writes what is pending. gRPC allows one writer, and a writer may have to wait
// for the server's flow control, for which no other goroutine should wait.
func (st *stream) sendAll(ctx context.Context, conn pb.Watch_WatchClient) {
	for {
		select {
		case <-st.send:
		case <-ctx.Done():
			return
		}
		st.mu.Lock()
		batch := st.pending
		st.pending = nil
		st.mu.Unlock()
		for _, r := range batch {
			if conn.Send(r) != nil {
				return
			}
		}
	}
}

// dispatch passes a message on to the listener of its watch. An error ends the stream.
//
// The listener is read in the step in which the message is noted: the listener that takes the watch over
// later finds the note (takeKept), and is not called for what came before.
func (st *stream) dispatch(resp *pb.WatchResponse) (watched bool, err error) {
	st.mu.Lock()
	st.heard = true
	w := st.watchOf(resp)
	if w == nil { // dropped meanwhile, or the answer to a probe
		st.mu.Unlock()
		return false, nil
	}
	to := w.to
	if resp.Canceled {
		st.mu.Unlock()
		return false, st.refused(w, resp)
	}
	since, again := resp.GetHeader().GetRevision(), w.broken
	if resp.Created {
		w.refusals = 0
		if w.from != 0 {
			since, w.from = w.from-1, 0
		}
		w.since = since
	}
	for _, ev := range resp.Events {
		w.told = max(w.told, ev.Kv.ModRevision)
	}
	if to == nil {
		st.toldNoListener(w, len(resp.Events))
	}
	st.mu.Unlock()
	if to == nil {
		return resp.Created, nil
	}
	if resp.Created {
		to.established(w, since, again)
	}
	for _, ev := range resp.Events {
		if ev.Type == mvccpb.Event_DELETE {
			to.deleted(w, ev.Kv.ModRevision)
		} else {
			to.changed(w, ev.Kv)
		}
	}
	return resp.Created, nil
}
