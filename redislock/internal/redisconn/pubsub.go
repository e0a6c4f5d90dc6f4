package redisconn

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/redis/rueidis"
)

// pubsub is the connection for all subscriptions, and for nothing else: a server closes one whose
// messages pile up, and renewals must not end with it. It is a dedicated one:
// rueidis calls a hook on the goroutine that has read the message, and Receive's callback on a
// second goroutine. The hook saves that hand-over, and only dedicated connections have hooks.
//
// UNSUBSCRIBE is never sent. A server that refuses it (MISCONF, BUSY, MASTERDOWN) answers out of
// rueidis's order, which panics then. A channel without listeners stays subscribed until there are
// many such channels, or none with listeners; then the connection is closed, and the listeners that
// are left subscribe anew, as they do after any other break.
type pubsub struct {
	client rueidis.Client

	// retries is how many more nodes are tried when one does not answer. In a cluster every node
	// forwards the messages that are published at another, and a node that hangs must not keep
	// a client from locking at the others.
	retries int

	// lock is held by the goroutine that changes the connection's subscriptions, also during its
	// request. A channel and not a mutex, because the context of a goroutine that waits for it may
	// end.
	lock chan struct{}
	conn *pubsubConn // the last one, nil at first; guarded by lock
}

// mostUnused is how many channels without listeners a connection keeps at least.
const mostUnused = 100

func newPubsub(client rueidis.Client) *pubsub {
	p := &pubsub{client: client, lock: make(chan struct{}, 1)}
	if topologyOf(client) == Cluster {
		p.retries = 5
	}
	return p
}

// pubsubConn is one connection, from its start to its end.
type pubsubConn struct {
	conn   rueidis.DedicatedClient
	broken chan struct{} // closed after err is set
	err    error

	mu        sync.Mutex
	listeners map[string][]*subscription // by channel, once the server has been asked; perhaps none
	confirmed map[string]bool            // channels that the server has confirmed
}

type subscription struct {
	up      func()
	message func(string)
}

// subscribe is Conn.Subscribe.
func (p *pubsub) subscribe(ctx context.Context, channel string, up func(), message func(string)) error {
	s := &subscription{up, message}
	l, err := p.enter(ctx, channel, s)
	for more := p.retries; err != nil && more > 0 && ctx.Err() == nil && Answered(err) == ""; more-- {
		l, err = p.enter(ctx, channel, s)
	}
	if err != nil {
		return err
	}
	defer func() {
		go func() { // in the background: no caller waits for it
			p.lock <- struct{}{}
			p.drop(l, channel, s)
		}()
	}()
	select {
	case <-l.broken:
		return l.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *pubsub) enter(ctx context.Context, channel string, s *subscription) (*pubsubConn, error) {
	select {
	case p.lock <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	l, err := p.open(ctx)
	if err != nil {
		<-p.lock
		return nil, err
	}
	if asked := l.add(channel, s); !asked {
		err = l.conn.Do(withoutDeadline{ctx}, l.conn.B().Subscribe().Channel(channel).Build()).Error()
	}
	if err != nil {
		l.forget(channel) // the next goroutine must not find a channel that looks as if it was asked for
		p.drop(l, channel, s)
		return nil, convertError(err)
	}
	<-p.lock
	return l, nil
}

// open returns the present connection, or makes one; the caller has the lock. rueidis takes no
// context for this dial, so that an abandoned dial ends by its time-out.
func (p *pubsub) open(ctx context.Context) (*pubsubConn, error) {
	old := p.conn
	if old != nil && !old.ended() {
		return old, nil
	}
	made := make(chan *pubsubConn, 1)
	go func() { made <- dialPubsub(p.client) }()
	select {
	case l := <-made:
		if old != nil {
			if used, _ := old.remove("", nil); used == 0 {
				old.conn.Close() // otherwise its last listener does
			}
		}
		p.conn = l
		if l.ended() {
			return nil, l.err
		}
		return l, nil
	case <-ctx.Done():
		go func() { (<-made).conn.Close() }()
		return nil, ctx.Err()
	}
}

func dialPubsub(client rueidis.Client) *pubsubConn {
	l := &pubsubConn{
		broken: make(chan struct{}), listeners: map[string][]*subscription{}, confirmed: map[string]bool{},
	}
	l.conn, _ = client.Dedicate() // Close gives it back
	ended := l.conn.SetPubSubHooks(rueidis.PubSubHooks{
		OnMessage: func(m rueidis.PubSubMessage) {
			for _, s := range l.of(m.Channel) {
				s.message(m.Message)
			}
		},
		OnSubscription: func(s rueidis.PubSubSubscription) {
			if s.Kind == "subscribe" {
				for _, s := range l.confirm(s.Channel) {
					s.up()
				}
			}
		},
	})
	select {
	case err := <-ended: // there is no connection
		l.end(err)
	default:
		go func() { l.end(<-ended) }()
	}
	return l
}

func (l *pubsubConn) end(err error) {
	if l.err = convertError(err); err == nil {
		l.err = errors.New("the subscriptions have ended")
	}
	close(l.broken)
}

func (l *pubsubConn) ended() bool {
	select {
	case <-l.broken:
		return true
	default:
		return false
	}
}

// of returns the listeners of a channel. The slice is never written to again.
func (l *pubsubConn) of(channel string) []*subscription {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.listeners[channel]
}

func (l *pubsubConn) confirm(channel string) []*subscription {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.confirmed[channel] = true
	return l.listeners[channel]
}

// add adds a listener and reports whether the server has been asked for its channel. If the
// server has also answered, add calls the listener's up at once.
func (l *pubsubConn) add(channel string, s *subscription) (asked bool) {
	l.mu.Lock()
	old, asked := l.listeners[channel]
	l.listeners[channel] = append(slices.Clip(old), s)
	confirmed := l.confirmed[channel]
	l.mu.Unlock()
	if confirmed {
		s.up()
	}
	return asked
}

// forget is for a channel that the server may not have been asked for: the next listener asks.
func (l *pubsubConn) forget(channel string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.listeners, channel)
	delete(l.confirmed, channel)
}

// drop ends one subscription, and closes a connection that has no other, or too many channels
// without any. The caller has the lock, and drop releases it.
func (p *pubsub) drop(l *pubsubConn, channel string, s *subscription) {
	defer func() { <-p.lock }()
	used, unused := l.remove(channel, s)
	if used == 0 || unused > max(used, mostUnused) {
		if p.conn == l {
			p.conn = nil
		}
		go l.conn.Close() // it waits for a second if the server is silent
	}
}

// remove removes a listener, and counts the channels with and without any.
func (l *pubsubConn) remove(channel string, s *subscription) (used, unused int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if old, asked := l.listeners[channel]; asked {
		l.listeners[channel] = slices.DeleteFunc(slices.Clone(old), func(x *subscription) bool { return x == s })
	}
	for _, all := range l.listeners {
		if len(all) > 0 {
			used++
		}
	}
	return used, len(l.listeners) - used
}
