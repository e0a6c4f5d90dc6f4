// Package quarantine keeps a server from granting while it may have forgotten grants: after it was
// started again, emptied, promoted or exchanged for another, until each lease that it may have
// forgotten is over. mark.lua finds that out and decides, in the script that would grant; it has
// the argument. The package has what the strategies and redlock share: where the mark is, what a
// client was told of it, and what people are told.
package quarantine

import (
	"context"
	_ "embed" // the scripts
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

var (
	//go:embed mark.lua
	markLua string
	//go:embed answer.lua
	answerLua string
	//go:embed left.lua
	leftLua string

	leftScript = NewScript(func() string { return leftLua })
)

// NewScript prepares a script that looks at the mark: a Guard runs it. It is for package variables.
func NewScript(parts ...func() string) *redisconn.Script {
	all := append([]func() string{func() string { return markLua }}, parts...)
	s := redisconn.NewScript(append(all, func() string { return answerLua })...)
	marked[s] = true
	return s
}

// marked has the scripts of NewScript. Nothing is added after the program's start.
var marked = map[*redisconn.Script]bool{}

// Guard runs the scripts of a store, and has those of NewScript look at the mark.
type Guard struct {
	conn   redisconn.Conn
	prefix string
	off    bool
	waits  bool // for replicas

	mu    sync.Mutex
	marks map[string]told // by their keys
}

// told has the last mark that a server has told.
type told struct {
	mark string
	sent time.Time // the request by which the reign was compared
}

// freshFor is for how long after a request that has compared the reign others need not. In less
// time no server is replaced and comes back, or is started again, and is connected to. A lease that
// is granted counts from its request: one that the network delivers late is not in time either.
const freshFor = 2 * time.Millisecond

// NewGuard makes the guard of a store. prefix begins the key of the mark. off: there is no
// quarantine. waits: the store's grants wait for replicas, and so must the quarantine.
func NewGuard(conn redisconn.Conn, prefix string, off, waits bool) *Guard {
	return &Guard{conn: conn, prefix: prefix, off: off, waits: waits, marks: map[string]told{}}
}

// mark is the key of the mark for a lock's key: one for each server and prefix. In a cluster a
// script may use the keys of one slot only, and a slot can move to another server: there is one for
// each slot. The 2 is the version of what is in it, as in the field hasp2 of a queue.
func (g *Guard) mark(key string) string {
	if g.conn.Topology() == redisconn.Cluster {
		return g.prefix + "mark2:{" + slotTags()[slotOf(key)] + "}"
	}
	return g.prefix + "mark2"
}

// Eval runs a script. With replicas it returns only after so many have its writes, or fails.
func (g *Guard) Eval(ctx context.Context, s *redisconn.Script, c redisconn.Call, replicas int) redisconn.Reply {
	if !marked[s] {
		return g.conn.Eval(ctx, s, c, replicas)
	}
	sent := time.Now()
	mark, full := g.with(c, sent, false)
	r, unconfirmed := g.learn(mark, sent, g.conn.Eval(ctx, s, full, replicas))
	if !unconfirmed || replicas == 0 || r.Err != nil {
		return r
	}
	// The replicas have the mark of this reign now, and the time of the quarantine begins when the
	// server is told so. The scripts change nothing when they are repeated; any of them is as good
	// as another.
	sent = time.Now()
	_, full = g.with(c, sent, true)
	r, _ = g.learn(mark, sent, g.conn.Eval(ctx, s, full, replicas))
	return r
}

// EvalAll runs a script that removes or extends entries, many times. While a slot of a cluster
// moves, the name may be on one server and the mark on the other, for as long as the slot is open:
// that is TRYAGAIN, and held locks would end. Such a call is made again without the mark: it does
// what it is for and grants nothing.
func (g *Guard) EvalAll(ctx context.Context, s *redisconn.Script, calls []redisconn.Call) []redisconn.Reply {
	if !marked[s] {
		return g.conn.EvalAll(ctx, s, calls)
	}
	sent := time.Now()
	marks, full := make([]string, len(calls)), make([]redisconn.Call, len(calls))
	for i, c := range calls {
		marks[i], full[i] = g.with(c, sent, false)
	}
	replies := g.conn.EvalAll(ctx, s, full)
	var again []redisconn.Call
	var at []int
	for i, r := range replies {
		replies[i], _ = g.learn(marks[i], sent, r)
		if redisconn.Answered(r.Err) == "TRYAGAIN" && !g.off {
			again, at = append(again, with(calls[i], "blind")), append(at, i)
		}
	}
	if len(again) > 0 {
		for i, r := range g.conn.EvalAll(ctx, s, again) {
			replies[at[i]] = r
		}
	}
	return replies
}

// Left asks for how long the server of a key grants nothing from now.
func (g *Guard) Left(ctx context.Context, key string) (time.Duration, error) {
	if g.off {
		return 0, nil
	}
	sent := time.Now()
	mark, c := g.with(redisconn.Call{Keys: []string{key}}, sent, false)
	r, _ := g.learn(mark, sent, g.conn.Eval(ctx, leftScript, c, 0))
	us, _ := r.Value.(int64)
	return time.Duration(us) * time.Microsecond, r.Err
}

// with adds to a call what mark.lua expects behind its KEYS and ARGV.
func (g *Guard) with(c redisconn.Call, now time.Time, confirmed bool) (mark string, _ redisconn.Call) {
	if g.off {
		return "", with(c, "off")
	}
	mark = g.mark(c.Keys[0])
	g.mu.Lock()
	t := g.marks[mark]
	g.mu.Unlock()
	how := "-"
	switch fresh := now.Sub(t.sent) < freshFor; {
	case confirmed:
		how = "c"
	case g.waits && fresh:
		how = "W"
	case g.waits:
		how = "w"
	case fresh:
		how = "+"
	}
	return mark, with(c, how+t.mark, mark)
}

// with adds to a call, whose slices others may be reading.
func with(c redisconn.Call, known string, mark ...string) redisconn.Call {
	return redisconn.Call{Keys: slices.Concat(c.Keys, mark), Args: append(slices.Clip(c.Args), known)}
}

// learn takes the news of the mark from an answer: see answer.lua. Answers may come in another
// order than they were given. What is noted is then older than what could be known, and the next
// answer has the news again.
func (g *Guard) learn(mark string, sent time.Time, r redisconn.Reply) (_ redisconn.Reply, unconfirmed bool) {
	parts, _ := r.Value.([]any)
	if len(parts) < 3 || parts[0] != "mark" {
		return r, false
	}
	text, _ := parts[1].(string)
	g.mu.Lock()
	t := g.marks[mark]
	if t.sent = sent; text != "" {
		t.mark = text
	}
	g.marks[mark] = t
	g.mu.Unlock()
	r.Value = nil
	if len(parts) > 3 {
		r.Value = parts[3]
	}
	return r, parts[2] == int64(1)
}

// Refusal is the error of a request that cannot wait for the end of the quarantine; left is the
// script's answer in microseconds.
func Refusal(left any) error {
	us, _ := left.(int64)
	return fmt.Errorf("%w: the server may have forgotten locks, and grants none for another %s",
		driver.ErrRefused, (time.Duration(us) * time.Microsecond).Round(time.Millisecond))
}

// slotOf is the slot of a key whose hash tag is all that is between its first braces.
func slotOf(key string) uint16 {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			key = tag
		}
	}
	return crc16(key) % 16384
}

// crc16 is Redis Cluster's: XMODEM, polynomial 0x1021.
func crc16(text string) (crc uint16) {
	for _, b := range []byte(text) {
		crc ^= uint16(b) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			if crc <<= 1; carry {
				crc ^= 0x1021
			}
		}
	}
	return crc
}

// slotTags has for each slot the least number whose text hashes to it. A slice, since the place for
// an array of 256 KB would be made when the program starts.
var slotTags = sync.OnceValue(func() []string {
	tags := make([]string, 16384)
	for i, missing := 0, len(tags); missing > 0; i++ {
		text := strconv.Itoa(i)
		if at := crc16(text) % uint16(len(tags)); tags[at] == "" {
			tags[at] = text
			missing--
		}
	}
	return tags
})

// Examine tells people what the mark of a server says.
func (g *Guard) Examine(ctx context.Context, n redisconn.Node, x *redisconn.Examination) {
	const subject = "quarantine"
	switch {
	case g.off:
		x.Add(driver.Bad, subject, "off: a server that has forgotten its locks grants them again at once", "leave out quarantine=off")
		return
	case x.Fields["master_replid"] == "":
		x.Add(driver.Bad, subject, "INFO has no replication id: a restart of the server is not noticed", "allow INFO to the user; else let the resource check fencing tokens")
		return
	case g.conn.Topology() == redisconn.Cluster:
		x.Add(driver.Info, subject, "on, separately for each slot", "")
		return
	}
	text, _ := n.Do(ctx, "GET", g.mark("")).Value.(string)
	var reign string
	var till, before, longest, seconds, micro int64
	if _, err := fmt.Sscan(text, &till, &longest, &reign, &before); err != nil {
		x.Add(driver.Info, subject, "on; no lock was ever taken here", "")
		return
	}
	if now, _ := n.Do(ctx, "TIME").Value.([]any); len(now) == 2 {
		_, _ = fmt.Sscan(fmt.Sprint(now[0], " ", now[1]), &seconds, &micro)
	}
	left := time.Duration(till-seconds*1e6-micro) * time.Microsecond
	lease := time.Duration(max(longest, before)) * time.Microsecond
	cure := "wait, or write its run id to hasp:new and delete " + g.mark("") + " if you know better"
	x.When(!strings.HasPrefix(reign, x.Fields["master_replid"]+"/"), driver.Warn, subject, fmt.Sprintf("the server was started again, or promoted, since the last lock: "+
		"it grants none until it is up for %s, or for so long from the next request on", lease), "")
	x.When(till == 0, driver.Warn, subject, fmt.Sprintf("the server may have forgotten locks, and grants none until its replicas confirm, and for another %s", lease), cure)
	x.When(left > 0, driver.Warn, subject, fmt.Sprintf("the server may have forgotten locks, and grants none for another %s", left.Round(time.Second)), cure)
	x.Else(subject, fmt.Sprintf("on; after a restart the server grants nothing for %s, the longest TTL in use", lease))
}
