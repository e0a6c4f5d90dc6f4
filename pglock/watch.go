package pglock

import (
	"context"
	"strings"
	"time"
)

// watchPeriod is how long a name's changes are notified after a client asked for it. A client that
// watches asks again at half of it.
const watchPeriod = 20 * time.Second

// watchPoll is how often a name is read where notifications do not arrive.
const watchPoll = time.Second

// mostAsked is how many names are asked for before notifications are looked for again.
const mostAsked = 20

// Watch listens to the name's channel, on one connection for all names that are watched through
// this store. Changes are only notified while the name's row says that a client watches: all other
// names are spared the notification, whose commit takes a lock on the whole database. The expiry of
// a holder is not notified, so there is a timer for it.
func (t *table) Watch(ctx context.Context, name string, changed func()) error {
	if err := t.ensure(ctx); err != nil {
		return err
	}
	return t.watched.Watch(ctx, name, changed)
}

// watchAll is the group's Run.
func (t *table) watchAll(ctx context.Context) error {
	err := t.watchOn(ctx)
	if noSchema(err) {
		t.forget()
	}
	return explain(ctx, err)
}

func (t *table) watchOn(ctx context.Context) error {
	c, err := t.links.link(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	listening := listening{}
	heard := func(channel, _ string) {
		for name := range listening[channel] {
			t.watched.Changed(name)
		}
	}
	over, cancel := context.WithCancel(ctx)
	cancel() // for a wait that only takes what has come already
	for ctx.Err() == nil {
		all, due := t.watched.Names()
		if len(due) == 0 {
			if err := t.unlisten(ctx, c, listening, all); err != nil {
				return err
			}
			asleep, cancel := t.watched.Pause(ctx)
			for err = nil; err == nil; {
				err = c.wait(asleep, heard)
			}
			woken := asleep.Err() != nil
			cancel()
			if !woken {
				return err
			}
			continue
		}
		due = due[:min(len(due), mostAsked)]
		if err := t.listen(ctx, c, listening, due); err != nil {
			return err
		}
		for _, name := range due {
			if err := t.askWatched(ctx, c, name); err != nil {
				return err
			}
		}
		for c.wait(over, heard) == nil { // while there is one
		}
	}
	return ctx.Err()
}

// listening are the names by the channels that a connection listens on. Two names may share one.
type listening map[string]map[string]bool

// listen listens on the channels of these names, if it does not yet.
func (t *table) listen(ctx context.Context, c link, on listening, names []string) error {
	if !t.links.listens() {
		return nil
	}
	var script strings.Builder
	err := c.each(ctx, t.naming.sql("SELECT n.name, hasp_channel(n.name) FROM pg_catalog.unnest($1::pg_catalog.text::pg_catalog.text[]) n(name)"), []any{textArray(names)}, len(names),
		func(scan func(...any) error) error {
			var name, channel string
			err := scan(&name, &channel)
			if on[channel] == nil {
				on[channel] = map[string]bool{}
				script.WriteString(`LISTEN "` + channel + `";`)
			}
			on[channel][name] = true
			return err
		})
	if err == nil && script.Len() > 0 {
		err = c.script(ctx, script.String())
	}
	return err
}

// unlisten gives up the channels of names that are not watched any more.
func (t *table) unlisten(ctx context.Context, c link, on listening, watched map[string]bool) error {
	var script strings.Builder
	for channel, names := range on {
		for name := range names {
			if !watched[name] {
				delete(names, name)
			}
		}
		if len(names) == 0 {
			delete(on, channel)
			script.WriteString(`UNLISTEN "` + channel + `";`)
		}
	}
	if script.Len() == 0 {
		return nil
	}
	return c.script(ctx, script.String())
}

// askWatched asks first, and then calls changed: what happens after the asking is notified, what
// happened before is seen by the reading that the call causes. A name whose row another program has
// locked is asked for again later: it must not hold up the others.
func (t *table) askWatched(ctx context.Context, c link, name string) error {
	var soon int64
	err := one(ctx, c, t.naming.sql("SELECT hasp_watch(hasp_level($1::pg_catalog.text), $2::bigint)"), []any{name, watchPeriod.Microseconds()}, &soon)
	switch {
	case sqlState(err) == lockNotAvailable:
		t.watched.Asked(name, watchPoll)
		return nil
	case rolledBack(err):
		t.watched.Asked(name, leastRetry)
		return nil
	case err != nil:
		return err
	}
	period := watchPeriod / 2
	if expiry := time.Duration(soon) * time.Microsecond; expiry > 0 {
		period = min(period, max(expiry, leastRetry)) // one that is never removed must not spin
	}
	if !t.links.listens() {
		period = min(period, watchPoll)
	}
	t.watched.Asked(name, period)
	t.watched.Changed(name)
	return nil
}
