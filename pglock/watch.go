package pglock

import (
	"context"
	"time"
)

// watchPeriod is how long a name's changes are notified after a client asked for it. A client that
// watches asks again at half of it.
const watchPeriod = 20 * time.Second

// watchPoll is how often a name is read where notifications do not arrive.
const watchPoll = time.Second

// Watch listens to the name's channel, on a separate connection. Changes are only notified while
// the name's row says that a client watches: all other names are spared the notification, whose
// commit takes a lock on the whole database. The expiry of a holder is not notified, so there is a
// timer for it.
func (t *table) Watch(ctx context.Context, name string, changed func()) error {
	if err := t.ensure(ctx); err != nil {
		return err
	}
	c, err := t.links.link(ctx)
	if err != nil {
		return explain(ctx, err)
	}
	defer c.close()
	if t.links.listens() {
		var channel string
		if err := one(ctx, c, t.naming.sql("SELECT hasp_channel($1::pg_catalog.text)"), []any{name}, &channel); err != nil {
			return explain(ctx, err)
		}
		if err := c.script(ctx, `LISTEN "`+channel+`"`); err != nil {
			return explain(ctx, err)
		}
	}
	for {
		// Ask first, then call changed: what happens after the asking is notified, what
		// happened before is seen by the reading that the call causes.
		var soon int64
		err := one(ctx, c, t.naming.sql("SELECT hasp_watch(hasp_level($1::pg_catalog.text), $2::bigint)"), []any{name, watchPeriod.Microseconds()}, &soon)
		if err != nil {
			return explain(ctx, err)
		}
		changed()
		if err := t.watchFor(ctx, c, soon, changed); err != nil {
			return err
		}
	}
}

// watchFor listens until it is time to ask again.
func (t *table) watchFor(ctx context.Context, c link, soon int64, changed func()) error {
	period := watchPeriod / 2
	if expiry := time.Duration(soon) * time.Microsecond; expiry > 0 {
		period = min(period, max(expiry, leastRetry)) // one that is never removed must not spin
	}
	if !t.links.listens() {
		period = min(period, watchPoll)
	}
	within, cancel := context.WithTimeout(ctx, period)
	defer cancel()
	for within.Err() == nil {
		if err := c.wait(within, func(string) { changed() }); err != nil && within.Err() == nil {
			return explain(ctx, err)
		}
	}
	return ctx.Err()
}
