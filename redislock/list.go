package redislock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
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
	r := conn.Eval(ctx, s, c, 0)
	if r.Err != nil && redisconn.Answered(r.Err) == "" && ctx.Err() == nil {
		r = conn.Eval(ctx, s, c, 0)
	}
	return r
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
	p := parseEntryDetails(parts[4])
	e.ID, e.Capacity, e.Session, e.Since, e.Owner = parts[0], p.capacity, p.session, p.since, p.owner
	return e, expiry > moment, nil
}

// entryDetails is the part of an entry behind its units.
type entryDetails struct {
	capacity       int64
	session, owner string
	since          time.Time
}

func parseEntryDetails(text string) entryDetails {
	var r entryDetails
	var capacity, since string
	capacity, text, _ = strings.Cut(text, " ")
	r.session, text, _ = strings.Cut(text, " ")
	since, r.owner, _ = strings.Cut(text, " ")
	r.capacity, _ = strconv.ParseInt(capacity, 10, 64)
	if us, err := strconv.ParseInt(since, 10, 64); err == nil {
		r.since = time.UnixMicro(us)
	}
	return r
}

// Names asks every master for its keys. A name without entries is left out: its hash only remembers
// its next token. There may be many of these, so keys are read many at a time, and those whose
// encoded form has another prefix not at all.
func (q *queue) Names(ctx context.Context, prefix string, yield func(string) bool) error {
	return scan(ctx, q.conn, q.opts.Prefix+"{*}", "hash", func(keys []string) (more bool, err error) {
		keys = slices.DeleteFunc(keys, func(key string) bool {
			name, ok := driver.DecodeName(q.encoded(key))
			return ok && !strings.HasPrefix(name, prefix)
		})
		for some := range slices.Chunk(keys, namesAtOnce) {
			names, err := q.used(ctx, some)
			for _, name := range names {
				if strings.HasPrefix(name, prefix) && !yield(name) {
					return false, nil
				}
			}
			if err != nil {
				return false, err
			}
		}
		return true, nil
	})
}

// namesAtOnce is how many keys a listing reads in one round trip: renewals and requests of the
// process wait behind it.
const namesAtOnce = 100

// scan calls fn for the keys of the kind that match, page by page and each key once, at every
// master, until fn returns false.
func scan(ctx context.Context, conn redisconn.Conn, pattern, kind string, fn func(keys []string) (more bool, err error)) error {
	seen := map[string]bool{} // SCAN may return a key twice
	more := true
	return conn.Each(ctx, func(n redisconn.Node) error {
		for cursor := "0"; more; {
			r := n.Do(ctx, "SCAN", cursor, "MATCH", pattern, "COUNT", "500", "TYPE", kind)
			if r.Err != nil {
				return r.Err
			}
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
			var err error
			if more, err = fn(keys); err != nil {
				return err
			}
			if cursor == "0" {
				return nil
			}
		}
		return nil
	})
}

// oneByOne lets scan call fn for each key of a page.
func oneByOne(fn func(key string) (more bool, err error)) func(keys []string) (bool, error) {
	return func(keys []string) (bool, error) {
		for _, key := range keys {
			if more, err := fn(key); err != nil || !more {
				return more, err
			}
		}
		return true, nil
	}
}

// encoded is the name in a key as keys have it.
func (q *queue) encoded(key string) string {
	return strings.TrimSuffix(strings.TrimPrefix(key, q.opts.Prefix+"{"), "}")
}

// used returns the names of those keys that have live entries. What had no answer, since the
// connection broke, is read once more: it changes nothing.
func (q *queue) used(ctx context.Context, keys []string) (names []string, err error) {
	calls := make([]redisconn.Call, len(keys))
	for i, key := range keys {
		calls[i] = redisconn.Call{Keys: []string{key}, Args: []string{"1"}}
	}
	for i, r := range q.conn.EvalAll(ctx, frontScript, calls) {
		if r.Err != nil && redisconn.Answered(r.Err) == "" {
			r = q.read(ctx, keys[i], 1)
		}
		if redisconn.Answered(r.Err) == "WRONGTYPE" {
			continue // it was a hash a moment ago
		}
		if r.Err != nil {
			return names, r.Err
		}
		if name := q.nameIfUsed(keys[i], r.Value); name != "" {
			names = append(names, name)
		}
	}
	return names, nil
}

// nameIfUsed returns the name of a key that has live entries, else "".
func (q *queue) nameIfUsed(key string, reply any) string {
	now, hash := contents(reply)
	if isForeign(hash) {
		return ""
	}
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
