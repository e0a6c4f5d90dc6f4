package zklock

import (
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp/driver"
)

// event is the library's callback. It may run under the library's locks and never calls
// it.
func (c *conn) event(ev zk.Event) {
	switch ev.Type {
	case zk.EventSession:
		c.newState(ev.State)
	case zk.EventNotWatching:
		// The library forgets its watches with the session, and ended wakes every waiter.
	default:
		c.watches.deliver(ev.Path, ev.Type)
	}
}

func (c *conn) newState(state zk.State) {
	switch state {
	case zk.StateHasSession:
		c.dial.up()
		c.mu.Lock()
		again := c.everConnected
		c.everConnected, c.continued = true, c.monitor.began
		c.mu.Unlock()
		if again {
			c.watches.reconnected() // what is woken waits for ready
		}
		c.mu.Lock()
		c.up = true
		close(c.ready)
		c.mu.Unlock()
	case zk.StateDisconnected:
		c.mu.Lock()
		if c.up {
			c.up = false
			c.ready = make(chan struct{})
		}
		c.mu.Unlock()
	case zk.StateExpired:
		err := fmt.Errorf("%w: the server says that the session has expired", driver.ErrGone)
		if c.end(err) && c.lost != nil {
			c.lost(err)
		}
		go c.shut()
	}
}

// grant notes what the server granted to a connection that asked for the session, or for
// its continuation, at that time. A server whose settings were changed, or another one, may
// grant less than before. More than before is not counted on: it is the library that asks
// for what it had, and the next server may give that again.
func (c *conn) grant(asked time.Time, timeout time.Duration) {
	c.mu.Lock()
	first := c.granted == 0
	if timeout <= 0 || !first && timeout >= c.granted { // 0: the answer to a session that has expired
		c.mu.Unlock()
		return
	}
	c.granted = timeout
	tell := c.shorter
	c.mu.Unlock()
	if !first && tell != nil {
		tell(asked, timeout)
	}
}

// whenShorter returns what has been granted, and has fn called, soon and without any lock,
// when a connection is granted less.
func (c *conn) whenShorter(fn func(asked time.Time, granted time.Duration)) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shorter = fn
	return c.granted
}
