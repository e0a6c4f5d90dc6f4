package redislock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
	"github.com/hasplock/hasp/redislock/internal/setnx"
)

// List reads a queue, or its front. It omits expired entries, although the store removes them
// only at the next request.
func (q *queue) List(ctx context.Context, name string, limit int) ([]driver.Entry, error) {
	r := q.read(ctx, q.key(name), limit)
	if r.Err != nil {
		return nil, describeForeign(ctx, q.conn, StrategyQueue, q.key(name), wrongType(name, r.Err))
	}
	now, hash := contents(r.Value)
	if isForeign(hash) {
		return nil, describeForeign(ctx, q.conn, StrategyQueue, q.key(name), errForeign(name))
	}
	return parseEntries(name, now, hash)
}

// read returns a name's hash, or only the fields of its first entries.
func (q *queue) read(ctx context.Context, key string, limit int) redisconn.Reply {
	if limit == 0 {
		return read(ctx, q.conn, listScript, redisconn.Call{Keys: []string{key}})
	}
	return read(ctx, q.conn, frontScript, redisconn.Call{Keys: []string{key}, Args: []string{strconv.Itoa(limit)}})
}

// contents parses the answer of listScript: the server's time, and the fields.
func contents(reply any) (now string, hash map[string]string) {
	parts, _ := reply.([]any)
	if len(parts) != 2 {
		return "", nil
	}
	now, _ = parts[0].(string)
	fields, _ := parts[1].([]any)
	hash = make(map[string]string, len(fields)/2)
	for i := 0; i+1 < len(fields); i += 2 {
		field, _ := fields[i].(string)
		hash[field], _ = fields[i+1].(string)
	}
	return now, hash
}

// isForeign reports that hasp did not write this hash.
func isForeign(hash map[string]string) bool { return len(hash) > 0 && hash["hasp2"] == "" }

// read runs a script that changes nothing, and repeats it once if the connection broke: only the
// next request finds that the server has closed an idle connection.
func read(ctx context.Context, conn redisconn.Conn, s *redisconn.Script, c redisconn.Call) redisconn.Reply {
	return readAll(ctx, conn, s, []redisconn.Call{c})[0]
}

// readAll is the same for many calls.
func readAll(ctx context.Context, conn redisconn.Conn, s *redisconn.Script, calls []redisconn.Call) []redisconn.Reply {
	rs := conn.EvalAll(ctx, s, calls, 0)
	lost := func(r redisconn.Reply) bool { return r.Err != nil && redisconn.Answered(r.Err) == "" }
	if slices.ContainsFunc(rs, lost) && ctx.Err() == nil {
		rs = conn.EvalAll(ctx, s, calls, 0)
	}
	driver.Progress(ctx)
	return rs
}

// parseEntries makes the entries from a name's hash.
func parseEntries(name, now string, hash map[string]string) ([]driver.Entry, error) {
	var list []driver.Entry
	for field, value := range hash {
		waits := strings.HasPrefix(field, "w:")
		if !waits && field != "one" && !strings.HasPrefix(field, "h:") {
			continue
		}
		e, living, err := parseEntry(value, now)
		if err != nil {
			return nil, fmt.Errorf("the entry in field %q of %q is not readable: %w", field, name, err)
		}
		if !living {
			continue
		}
		e.Name, e.Waits = name, waits
		if _, v, ok := strings.Cut(hash["b:"+e.ID], ":"); ok { // before it stands the version
			e.Value = []byte(v)
		}
		list = append(list, e)
	}
	// A holder may have a later Seq than a waiter: see promote in queue.lua.
	slices.SortFunc(list, func(a, b driver.Entry) int {
		switch {
		case a.Waits && !b.Waits:
			return 1
		case b.Waits && !a.Waits:
			return -1
		}
		return cmp.Compare(a.Seq, b.Seq)
	})
	return list, nil
}

// parseEntry reads "ID Seq expiry units capacity session since owner". living compares two moments
// of the server's clock.
func parseEntry(text, now string) (e driver.Entry, living bool, err error) {
	parts := strings.SplitN(text, " ", 5)
	if len(parts) != 5 {
		return e, false, errors.New("too few parts")
	}
	var expiry, moment int64
	if _, err := fmt.Sscan(parts[1]+" "+parts[2]+" "+parts[3]+" "+now, &e.Seq, &expiry, &e.Units, &moment); err != nil {
		return e, false, err
	}
	e.Left = time.Duration(expiry-moment) * time.Microsecond
	e.ID = parts[0]
	readDetails(&e, parts[4])
	return e, expiry > moment, nil
}

// readDetails reads the part of an entry behind its units.
func readDetails(e *driver.Entry, text string) {
	capacity, text, _ := strings.Cut(text, " ")
	session, text, _ := strings.Cut(text, " ")
	since, owner, _ := strings.Cut(text, " ")
	e.Session, e.Owner = session, owner
	e.Capacity, _ = strconv.ParseInt(capacity, 10, 64)
	if us, err := strconv.ParseInt(since, 10, 64); err == nil {
		e.Since = time.UnixMicro(us)
	}
}

// Names asks every master for its keys. A name without entries is left out: its hash only remembers
// its next token.
func (q *queue) Names(ctx context.Context, prefix string, yield func(string) bool) error {
	return listUsed(ctx, q.conn, q.opts.Prefix+"{*}", "hash", prefix, q.used, yield)
}

// namesAtOnce is how many keys a listing reads in one round trip: renewals and requests of the
// process wait behind it.
const namesAtOnce = 100

// listUsed yields the names with the prefix of those keys that are in use. There may be many others,
// so keys are read many at a time.
func listUsed(ctx context.Context, conn redisconn.Conn, pattern, kind, prefix string,
	used func(ctx context.Context, keys []string, prefix string) ([]string, error), yield func(string) bool) error {
	for keys, err := range scan(ctx, conn, pattern, kind) {
		if err != nil {
			return err
		}
		for some := range slices.Chunk(keys, namesAtOnce) {
			names, err := used(ctx, some, prefix)
			for _, name := range names {
				if strings.HasPrefix(name, prefix) && !yield(name) {
					return nil
				}
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// scan yields the keys of the kind that match, page by page and each key once, at every master. An
// error ends it.
func scan(ctx context.Context, conn redisconn.Conn, pattern, kind string) iter.Seq2[[]string, error] {
	return func(yield func([]string, error) bool) {
		seen, more := map[string]bool{}, true // SCAN may return a key twice
		err := conn.Each(ctx, func(n redisconn.Node) error {
			for cursor := "0"; more; {
				r := n.Do(ctx, "SCAN", cursor, "MATCH", pattern, "COUNT", "500", "TYPE", kind)
				if r.Err != nil {
					return r.Err
				}
				driver.Progress(ctx)
				page, _ := r.Value.([]any)
				if len(page) != 2 {
					return fmt.Errorf("SCAN: unexpected answer %T", r.Value)
				}
				cursor, _ = page[0].(string)
				found, _ := page[1].([]any)
				var keys []string
				for _, k := range found {
					if key, _ := k.(string); !seen[key] {
						seen[key] = true
						keys = append(keys, key)
					}
				}
				if more = yield(keys, nil); cursor == "0" {
					break
				}
			}
			return nil
		})
		if err != nil && more {
			yield(nil, err)
		}
	}
}

// encoded is the name in a key as keys have it.
func (q *queue) encoded(key string) string {
	return strings.TrimSuffix(strings.TrimPrefix(key, q.opts.Prefix+"{"), "}")
}

// used returns the names of those keys that have live entries. Keys whose encoded form has another
// prefix are not read. A queue of another version of hasp is an error: who lists would take it for
// free.
func (q *queue) used(ctx context.Context, keys []string, prefix string) (names []string, err error) {
	var calls, foreign []redisconn.Call
	for _, key := range keys {
		if name, ok := driver.DecodeName(q.encoded(key)); !ok || strings.HasPrefix(name, prefix) {
			calls = append(calls, redisconn.Call{Keys: []string{key}, Args: []string{"1"}})
		}
	}
	for i, r := range readAll(ctx, q.conn, frontScript, calls) {
		if redisconn.Answered(r.Err) == "WRONGTYPE" {
			continue // it was a hash a moment ago
		}
		if r.Err != nil {
			return names, r.Err
		}
		now, hash := contents(r.Value)
		if isForeign(hash) {
			foreign = append(foreign, redisconn.Call{Keys: calls[i].Keys})
		} else if name := q.nameIfUsed(calls[i].Keys[0], now, hash); name != "" {
			names = append(names, name)
		}
	}
	for i, r := range readAll(ctx, q.conn, setnx.Format, foreign) {
		if err := otherFormat(StrategyQueue, foreign[i].Keys[0], r.Value); err != nil {
			return names, err
		}
	}
	return names, nil
}

// nameIfUsed returns the name of a key that has live entries, else "".
func (q *queue) nameIfUsed(key, now string, hash map[string]string) string {
	name, ok := driver.DecodeName(q.encoded(key))
	if !ok {
		name = hash["name"]
	}
	if list, err := parseEntries(name, now, hash); err != nil || len(list) == 0 {
		return ""
	}
	return name
}

// Evict removes an entry on an operator's behalf, tells its session, and keeps the note in the
// name's hash, which is deleted with it.
func (q *queue) Evict(ctx context.Context, name, id, note string) error {
	if !driver.ValidID(id) {
		return driver.ErrGone // no entry has such an ID
	}
	there, err := q.leave(ctx, redisconn.Call{Keys: []string{q.key(name)}, Args: []string{id, note}})
	if err == nil && !there {
		err = driver.ErrGone
	}
	return err
}

// LastEviction returns the note of the last eviction.
func (q *queue) LastEviction(ctx context.Context, name string) (string, error) {
	r := q.read(ctx, q.key(name), 1)
	if r.Err != nil {
		return "", wrongType(name, r.Err)
	}
	_, hash := contents(r.Value)
	return hash["evicted"], nil
}
