package redisconn

import (
	"context"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// A script that grants has to know which process of the server runs it (see quarantine/mark.lua). It can
// ask, which costs the server 4 µs each time. Or it can be told by its own text: a text with the run
// id of a process is loaded only into that process, and so no other one ever runs it:
//
//   - It is loaded over a connection over which that process has said that it has this run id. A
//     connection does not survive its process.
//   - A server keeps loaded scripts in its memory alone: not in its files, and not at its replicas.
//     That is so since Redis 7. Before, replicas and RDB files had them, so there each script asks.
//   - No text of this kind is ever sent with EVAL, which would leave it in the process that answers.
//
// So if the process is another one, it does not know the script (NOSCRIPT), and the text that asks
// is sent instead. The alternative that the client checks the process when it connects fails: a
// client library sends a request over the connection that it has at that moment.

// unknownProcess is the line of a script's text that a process's variant replaces.
const unknownProcess = "local RUN = nil"

// grantScripts are all scripts with that line.
var grantScripts []*Script

// NewGrantScript prepares a script that grants. It is for package variables.
func NewGrantScript(parts ...func() string) *Script {
	s := NewScript(parts...)
	s.grants = len(grantScripts) + 1
	grantScripts = append(grantScripts, s)
	return s
}

// process is a server process, and the scripts that it alone has.
type process struct {
	scripts []*Script // as grantScripts
}

// processes knows the process behind a connection to one server, or to a Sentinel set's master. It
// loads scripts over the connection for single requests, or where there is none over that of the
// subscriptions.
type processes struct {
	now  atomic.Pointer[process] // nil: unknown
	idle *idleConn               // nil: none

	mu      sync.Mutex
	conn    rueidis.CommandClient // of the subscriptions; nil: none yet
	loading bool
	next    time.Time // load not before
}

func newProcesses(client rueidis.Client, idle *idleConn) *processes {
	if topologyOf(client) == Cluster {
		return nil
	}
	return &processes{idle: idle}
}

// loadPause bounds how often the scripts are loaded into a process that forgets them or refuses
// them. loadBound is for a server that does not answer.
const (
	loadPause = 10 * time.Second
	loadBound = 5 * time.Second
)

// variant is the script's text for the process that was seen last; nil if there is none.
func (p *processes) variant(s *Script) (*process, *Script) {
	if p == nil || s.grants == 0 {
		return nil, nil
	}
	now := p.now.Load()
	if now == nil {
		if p.idle != nil { // no new connection will be the occasion
			p.mu.Lock()
			p.loadLocked()
			p.mu.Unlock()
		}
		return nil, nil
	}
	return now, now.scripts[s.grants-1]
}

// connected says that there is a new connection.
func (p *processes) connected(conn rueidis.DedicatedClient) {
	if p == nil || p.idle != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conn, p.next = conn, time.Time{}
	p.loadLocked()
}

// gone says that the process did not know its script: it is another one, or has forgotten it.
func (p *processes) gone(was *process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now.CompareAndSwap(was, nil) {
		p.loadLocked()
	}
}

// loadLocked loads the scripts in the background.
func (p *processes) loadLocked() {
	if p.loading || p.conn == nil && p.idle == nil || time.Now().Before(p.next) {
		return
	}
	p.loading, p.next = true, time.Now().Add(loadPause)
	go func(conn rueidis.CommandClient) {
		found := p.load(conn)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.loading = false
		switch {
		case p.conn != conn: // another one meanwhile
			p.next = time.Time{}
			p.loadLocked()
		case found != nil:
			p.now.Store(found)
		}
	}(p.conn)
}

func (p *processes) load(conn rueidis.CommandClient) (found *process) {
	ctx, cancel := context.WithTimeout(context.Background(), loadBound)
	defer cancel()
	if p.idle == nil {
		return load(withoutDeadline{ctx}, conn)
	}
	p.idle.pinned(ctx, func(ctx context.Context, client rueidis.CommandClient) Reply {
		found = load(ctx, client)
		return Reply{}
	})
	return found
}

var runID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^run_id:([0-9a-f]+)\r?$`) })

// load asks a process for its run id, and loads its scripts over the same connection.
func load(ctx context.Context, conn rueidis.CommandClient) *process {
	info, _ := reply(conn.Do(ctx, conn.B().Info().Section("server").Build())).Value.(string)
	id := runID().FindStringSubmatch(info)
	if id == nil || majorVersion(info) < 7 {
		return nil
	}
	found := &process{}
	var hashes []string
	for _, s := range grantScripts {
		v := ScriptOf("local RUN = '" + id[1] + "'" + strings.TrimPrefix(s.Text(), unknownProcess))
		found.scripts, hashes = append(found.scripts, v), append(hashes, v.SHA1())
	}
	there, _ := reply(conn.Do(ctx, conn.B().ScriptExists().Sha1(hashes...).Build())).Value.([]any)
	var missing rueidis.Commands
	for i, v := range found.scripts {
		if i >= len(there) || there[i] != int64(1) {
			missing = append(missing, conn.B().ScriptLoad().Script(v.Text()).Build())
		}
	}
	if len(missing) == 0 {
		return found
	}
	for _, r := range conn.DoMulti(ctx, missing...) {
		if r.Error() != nil {
			return nil
		}
	}
	return found
}

var redisVersion = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^redis_version:(\d+)\.`) }) // Valkey says 7.2 here

func majorVersion(info string) int {
	m := redisVersion().FindStringSubmatch(info)
	if m == nil {
		return 0
	}
	n, _ := strconv.Atoi(m[1])
	return n
}
