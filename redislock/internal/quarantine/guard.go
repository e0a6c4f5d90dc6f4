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

// Format is the version of the mark, and of all that the strategies which share their locks with
// other libraries keep beside them. It stands in the mark, and not in its key: clients of two
// formats have one mark, and the one that comes second is refused. (Before 4 it stood in the key.)
// The key of the mark, and that its field "told" begins with this number and a dot, stay for good.
const Format = 4

// NewScript prepares a script that looks at the mark: a Guard runs it. It is for package variables.
func NewScript(parts ...func() string) *redisconn.Script {
	begin := func() string { return fmt.Sprintf("local format = '%d.'\n%s", Format, markLua) }
	all := append([]func() string{begin}, parts...)
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
	marks map[string]told   // by their keys
	facts map[string]string // of the nodes of a cluster: see mark.lua
}

// told has the last text that a client was told of a mark, "ID BOUND START ", and when the request
// for it was sent.
type told struct {
	text string
	sent time.Time
}

// NewGuard makes the guard of a store. prefix begins the key of the mark. off: there is no
// quarantine. waits: the store's grants wait for replicas, and so must the quarantine.
func NewGuard(conn redisconn.Conn, prefix string, off, waits bool) *Guard {
	return &Guard{conn: conn, prefix: prefix, off: off, waits: waits, marks: map[string]told{}, facts: map[string]string{}}
}

// mark is the key of the mark for a lock's key: one for each server and prefix. In a cluster a
// script may use the keys of one slot only, and a slot can move to another server: there is one for
// each slot.
func (g *Guard) mark(key string) string {
	if g.conn.Topology() == redisconn.Cluster {
		return g.prefix + "mark:{" + slotTags()[slotOf(key)] + "}"
	}
	return g.prefix + "mark"
}

// request is a call that looks at a mark.
type request struct {
	mark, node string
	call       redisconn.Call
	sent       time.Time
}

// Eval runs a script. With replicas it returns only after so many have its writes, or fails.
func (g *Guard) Eval(ctx context.Context, s *redisconn.Script, c redisconn.Call, replicas int) redisconn.Reply {
	if !marked[s] {
		return g.conn.Eval(ctx, s, c, replicas)
	}
	q := g.request(ctx, c)
	r, told := g.learn(q, g.conn.Eval(ctx, s, q.call, replicas))
	if told == "" || replicas == 0 || r.Err != nil {
		return r
	}
	// The replicas have the mark of this reign now, and the time of the quarantine begins when the
	// server is told so, by the text that this request was told: what others have learned meanwhile
	// is not confirmed. The scripts change nothing when they are repeated; any of them is as good as
	// another.
	q = g.request(ctx, c)
	q.call = with(c, "c"+told, q.mark)
	r, _ = g.learn(q, g.conn.Eval(ctx, s, q.call, replicas))
	return r
}

// EvalAll runs a script that removes or extends entries, many times. While a slot of a cluster
// moves, the name may be on one server and the mark on the other, for as long as the slot is open:
// that is TRYAGAIN, and held locks would end. Such a call is made again without the mark: it does
// what it is for and grants nothing.
//
// With replicas each answer means that so many have its writes. If one says that the quarantine
// waits for that, the call is made once more, to tell the server: see Eval.
func (g *Guard) EvalAll(ctx context.Context, s *redisconn.Script, calls []redisconn.Call, replicas int) []redisconn.Reply {
	if !marked[s] {
		return g.conn.EvalAll(ctx, s, calls, replicas)
	}
	all, full := make([]request, len(calls)), make([]redisconn.Call, len(calls))
	for i, c := range calls {
		all[i] = g.request(ctx, c)
		full[i] = all[i].call
	}
	replies := g.conn.EvalAll(ctx, s, full, replicas)
	var again []redisconn.Call
	var at []int
	for i, r := range replies {
		var unconfirmed string
		replies[i], unconfirmed = g.learn(all[i], r)
		switch {
		case redisconn.Answered(r.Err) == "TRYAGAIN" && !g.off:
			again, at = append(again, with(calls[i], "blind")), append(at, i)
		case unconfirmed != "" && replicas > 0 && r.Err == nil:
			again, at = append(again, with(calls[i], "c"+unconfirmed, all[i].mark)), append(at, i)
		}
	}
	if len(again) > 0 {
		for i, r := range g.conn.EvalAll(ctx, s, again, replicas) {
			replies[at[i]], _ = g.learn(all[at[i]], r)
		}
	}
	return replies
}

// Left asks for how long the server of a key grants nothing from now.
func (g *Guard) Left(ctx context.Context, key string) (time.Duration, error) {
	if g.off {
		return 0, nil
	}
	q := g.request(ctx, redisconn.Call{Keys: []string{key}})
	r, _ := g.learn(q, g.conn.Eval(ctx, leftScript, q.call, 0))
	us, _ := r.Value.(int64)
	return time.Duration(us) * time.Microsecond, redisconn.Refusal(r.Err)
}

// request adds to a call what mark.lua expects behind its KEYS and ARGV. Servers have told all of it:
// it stays true however late the request arrives, and wherever.
func (g *Guard) request(ctx context.Context, c redisconn.Call) request {
	if g.off {
		return request{call: with(c, "off")}
	}
	q := request{mark: g.mark(c.Keys[0]), sent: time.Now()}
	if g.conn.Topology() == redisconn.Cluster {
		q.node = g.conn.NodeOf(ctx, c.Keys[0])
	}
	known := "-"
	if g.waits {
		known = "w"
	}
	g.mu.Lock()
	known += g.marks[q.mark].text
	if facts := g.facts[q.node]; facts != "" {
		known += ";" + facts
	}
	g.mu.Unlock()
	q.call = with(c, known, q.mark)
	return q
}

// with adds to a call, whose slices others may be reading.
func with(c redisconn.Call, known string, mark ...string) redisconn.Call {
	return redisconn.Call{Keys: slices.Concat(c.Keys, mark), Args: append(slices.Clip(c.Args), known)}
}

// learn takes the news of the mark from an answer: see answer.lua. The news for an earlier request do
// not replace those for a later one. unconfirmed has those of this request, if the time of the
// quarantine has yet to begin.
func (g *Guard) learn(q request, r redisconn.Reply) (_ redisconn.Reply, unconfirmed string) {
	parts, _ := r.Value.([]any)
	if len(parts) < 4 || parts[0] != "mark" {
		return r, ""
	}
	text, _ := parts[1].(string)
	facts, _ := parts[3].(string)
	g.mu.Lock()
	if !q.sent.Before(g.marks[q.mark].sent) {
		g.marks[q.mark] = told{text, q.sent}
	}
	// The moment stays that of the first time.
	if hash, _, ok := strings.Cut(facts, " "); ok && !strings.HasPrefix(g.facts[q.node], hash+" ") {
		g.facts[q.node] = facts
	}
	g.mu.Unlock()
	r.Value = nil
	if len(parts) > 4 {
		r.Value = parts[4]
	}
	if parts[2] != int64(1) {
		text = ""
	}
	return r, text
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
	mark := n.Do(ctx, "HMGET", g.mark(""), "told", "reign", "till")
	if redisconn.Answered(mark.Err) == "WRONGTYPE" {
		x.Add(driver.Bad, subject, "the key "+g.mark("")+" is another program's: the server grants nothing", "delete it")
		return
	}
	fields, _ := mark.Value.([]any)
	if len(fields) > 0 && fields[0] != nil {
		told, _ := fields[0].(string)
		if found, _, _ := strings.Cut(told, "."); found != strconv.Itoa(Format) {
			x.Add(driver.Bad, subject, fmt.Sprintf("the mark %s has format %q, and this program knows %d: the server grants it nothing", g.mark(""), found, Format),
				"use one version of hasp")
			return
		}
	}
	var id, reign string
	var bound, till, seconds, micro int64
	if _, err := fmt.Sscan(fmt.Sprintln(fields...), &id, &bound, new(int64), &reign, &till); err != nil {
		x.Add(driver.Info, subject, "on; no lock was ever taken here", "")
		return
	}
	if now, _ := n.Do(ctx, "TIME").Value.([]any); len(now) == 2 {
		_, _ = fmt.Sscan(fmt.Sprint(now[0], " ", now[1]), &seconds, &micro)
	}
	left := time.Duration(till-seconds*1e6-micro) * time.Microsecond
	lease := time.Duration(bound) * time.Microsecond
	cure := "wait, or write its run id to hasp:new and delete " + g.mark("") + " if you know better"
	x.When(reign != x.Fields["master_replid"], driver.Warn, subject, fmt.Sprintf("the server was started again, or promoted, since the last lock: "+
		"it grants none for %s from the next request on", lease), "")
	x.When(till == 0, driver.Warn, subject, fmt.Sprintf("the server may have forgotten locks, and grants none until its replicas confirm, and for another %s", lease), cure)
	x.When(left > 0, driver.Warn, subject, fmt.Sprintf("the server may have forgotten locks, and grants none for another %s", left.Round(time.Second)), cure)
	x.Else(subject, fmt.Sprintf("on; after a restart the server grants nothing for %s, the longest TTL in use", lease))
}
