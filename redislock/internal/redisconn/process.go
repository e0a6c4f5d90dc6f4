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

// A script that grants has to know which process of the server runs it (see queue/mark.lua). It can
// ask, which costs the server 4 µs each time. Or it can be told by its own text: a text with the run
// id of a process is loaded only into that process, and so no other one ever runs it:
//
//   - It is loaded over a connection over which that process has said that it has this run id. A
//     connection does not survive its process.
//   - A server keeps loaded scripts in its memory alone: not in its files, and not at its replicas.
//     That is so since Redis 7. Before, replicas and RDB files had them, so there each script asks.
//   - No text of this kind is ever sent with EVAL, which would leave it in whatever process answers.
//
// So if the process is another one, it does not know the script (NOSCRIPT), and the text that asks
// is sent instead. The alternative that the client checks the process when it connects fails: a
// client library sends a request over whichever connection it has at that moment.

// unknownProcess is the line of a script's text that a process's variant replaces.
const unknownProcess = "local RUN = nil"

// grantScripts are all scripts with that line.
var grantScripts []*Script

// NewGrantScript prepares a script that grants. It is for package variables.
func NewGrantScript(parts ...string) *Script {
	s := NewScript(parts...)
	if !strings.HasPrefix(s.Text, unknownProcess) {
		panic("redisconn: the script does not begin with " + strconv.Quote(unknownProcess))
	}
	s.grants = len(grantScripts) + 1
	grantScripts = append(grantScripts, s)
	return s
}

// process is a server process, and the scripts that it alone has.
type process struct {
	scripts []*Script // as grantScripts
}

// processes knows the process behind a connection to one server, or to a Sentinel set's master.
type processes struct {
	dedicate func() (rueidis.DedicatedClient, func())
	now      atomic.Pointer[process] // nil: unknown

	mu     sync.Mutex
	asking bool
	next   time.Time // ask not before
}

func newProcesses(client rueidis.Client) *processes {
	if topologyOf(client) == Cluster {
		return nil
	}
	return &processes{dedicate: client.Dedicate}
}

// askPause bounds how often an unknown process is asked for: a server older than 7, or one that
// refuses INFO or SCRIPT, is asked again for ever.
const (
	askPause = time.Minute
	askBound = 5 * time.Second
)

// variant is the script's text for the process that was seen last; nil if there is none.
func (p *processes) variant(s *Script) (*process, *Script) {
	if p == nil || s.grants == 0 {
		return nil, nil
	}
	now := p.now.Load()
	if now == nil {
		p.ask()
		return nil, nil
	}
	return now, now.scripts[s.grants-1]
}

// gone says that the process did not know its script: it is another one, or has forgotten it.
func (p *processes) gone(was *process) {
	if p.now.CompareAndSwap(was, nil) {
		p.mu.Lock()
		p.next = time.Time{}
		p.mu.Unlock()
	}
}

// ask asks in the background.
func (p *processes) ask() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asking || time.Now().Before(p.next) {
		return
	}
	p.asking, p.next = true, time.Now().Add(askPause)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), askBound)
		defer cancel()
		found := p.load(ctx)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.asking = false
		if found != nil {
			p.now.Store(found)
		}
	}()
}

var runID = regexp.MustCompile(`(?m)^run_id:([0-9a-f]+)\r?$`)

// load asks the process for its run id, and loads its scripts over the same connection.
func (p *processes) load(ctx context.Context) *process {
	d, release := p.dedicate()
	defer release()
	info, _ := reply(d.Do(ctx, d.B().Info().Section("server").Build())).Value.(string)
	id := runID.FindStringSubmatch(info)
	if id == nil || majorVersion(info) < 7 {
		return nil
	}
	found := &process{}
	for _, s := range grantScripts {
		v := NewScript("local RUN = '" + id[1] + "'" + strings.TrimPrefix(s.Text, unknownProcess))
		if r := reply(d.Do(ctx, d.B().ScriptLoad().Script(v.Text).Build())); r.Err != nil {
			return nil
		}
		found.scripts = append(found.scripts, v)
	}
	return found
}

var redisVersion = regexp.MustCompile(`(?m)^redis_version:(\d+)\.`) // Valkey says 7.2 here

func majorVersion(info string) int {
	m := redisVersion.FindStringSubmatch(info)
	if m == nil {
		return 0
	}
	n, _ := strconv.Atoi(m[1])
	return n
}
