package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// peer is a lock that hasp-torture judges through an adapter, beside hasp's own.
type peer struct {
	what, library, kind string
	store               string // of the URL, if the server's address is none
	server              func(testing.TB) string
	processes           int // of the run; each has four adapters
}

// peers are those of the table in docs/TORTURE-RUNS.md. The programs of other languages take more
// memory, and get fewer processes.
var peers = []peer{
	{"hasp, by the same protocol", "hasp", "-", "redis://", redisAddr, 6},
	{"redsync", "redsync", "-", "redis://", redisAddr, 6},
	{"bsm/redislock", "bsm", "-", "redis://", redisAddr, 6},
	{"SET NX PX and DEL by hand", "blunt", "-", "redis://", redisAddr, 6},
	{"rueidislock, its requests by hand", "rueidislock", "-", "redis://", redisAddr, 6},
	{"redis-py Lock", "redis-py", "-", "redis://", redisAddr, 4},
	{"node-redlock", "redlock", "-", "redis://", redisAddr, 4},
	{"Redisson RLock, watchdog", "redisson", "plain", "redis://", redisAddr, 3},
	{"hasp's Python client, hasp serve on Redis", "hasplock", "-", "http://", servedRedis, 4},
	{"hasp's TypeScript client, hasp serve on Redis", "hasp-lock", "-", "http://", servedRedis, 4},
	{"hasp, by the same protocol", "hasp", "-", "etcd://", etcdAddr, 6},
	{"concurrency.Mutex", "concurrency", "-", "etcd://", etcdAddr, 6},
	{"etcdctl lock", "etcdctl", "-", "etcd://", etcdAddr, 6},
	{"hasp, by the same protocol", "hasp", "-", "zookeeper://", zookeeperAddr, 6},
	{"go-zookeeper Lock", "go-zookeeper", "-", "zookeeper://", zookeeperAddr, 6},
	{"kazoo Lock", "kazoo", "Lock", "zookeeper://", zookeeperAddr, 4},
	{"Curator InterProcessMutex", "curator", "mutex", "zookeeper://", zookeeperAddr, 3},
	{"hasp, by the same protocol", "hasp", "-", "", postgresServer, 6},
	{"pg_advisory_lock through pgx", "pgx", "-", "", postgresServer, 6},
	{"GET_LOCK through mariadb", "mariadb", "-", "", mariadbServer, 6},
}

// judged is a peer's run.
type judged struct {
	What    string    `json:"what"`
	Store   string    `json:"store"`
	Version string    `json:"version"`
	Command string    `json:"command"`
	Why     string    `json:"not_run,omitempty"`
	Verdict judgement `json:"verdict"`
}

// judgement has what hasp-torture --json prints, as far as tables need it.
type judgement struct {
	Seconds      float64 `json:"seconds"`
	Acquisitions int     `json:"acquisitions"`
	Hits         int     `json:"hits"`
	Faults       map[string]struct {
		Hits int `json:"hits"`
	} `json:"faults,omitempty"`
	Overlaps overlaps `json:"overlaps"`
	Plain    uint64   `json:"lost_updates_unfenced"`
	Fenced   uint64   `json:"lost_updates_fenced"`
	Writes   uint64   `json:"writes"`
	Fencing  bool     `json:"fencing"`
	False    int      `json:"false_released"`
	Stuck    []string `json:"stuck"`
	Ends     int      `json:"adapters_ended"`
	Control  struct {
		Violations int `json:"violations"`
	} `json:"control"`
	BrokenWords string `json:"broken,omitempty"` // which promises, in words
	Result      string `json:"verdict"`
}

type overlaps struct {
	InFlight int `json:"stopped_or_in_flight"`
	Told     int `json:"told"`
	CutOff   int `json:"cut_off,omitempty"`
	Forgot   int `json:"server_forgot,omitempty"`
	Broken   int `json:"broken"`
}

// torturePeers has hasp-torture judge every peer, and writes what it says to a file and, as a
// table, into a page.
func torturePeers(args []string) error {
	flags := flag.NewFlagSet("peers", flag.ContinueOnError)
	hasp := flags.String("hasp", "", "the hasp whose server the clients in other languages use")
	torture := flags.String("torture", "", "the hasp-torture that judges")
	duration := flags.Duration("for", 30*time.Second, "how long each run is")
	only := flags.String("only", "", "judge the peers whose store and name match this regular expression, and keep what the file has of the others")
	out := flags.String("out", "", "the file for what was seen")
	page := flags.String("page", "", "the page whose table is written anew")
	if err := flags.Parse(args); err != nil {
		return err
	}
	chosen, err := regexp.Compile(*only)
	if err != nil || *hasp == "" || *torture == "" {
		return errors.Join(err, errors.New("peers needs -hasp PROGRAM and -torture PROGRAM"))
	}
	served.program = *hasp
	defer served.end()
	if err := os.Setenv(clientsVariable, filepath.Join("..", "..", "clients")); err != nil {
		return err
	}
	before, err := judgedBefore(*out)
	if err != nil {
		return err
	}
	var all []*judged
	for _, p := range peers {
		var j *judged
		if old := before[p.what]; len(old) > 0 { // the same lock on several stores: in the order of peers
			j, before[p.what] = old[0], old[1:]
		}
		if !chosen.MatchString(p.store + " " + p.what) {
			if j != nil {
				all = append(all, j)
			}
			continue
		}
		j = p.judge(*torture, *duration)
		fmt.Fprint(os.Stderr, row(j))
		all = append(all, j)
	}
	text, err := json.MarshalIndent(all, "", " ")
	if err == nil && *out != "" {
		err = os.WriteFile(*out, append(text, '\n'), 0o644)
	}
	if err == nil && *page != "" {
		err = putTable(*page, peersMark, peersTable(all))
	}
	return err
}

// judgedBefore returns the runs in the file, by the name of the lock.
func judgedBefore(path string) (map[string][]*judged, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var all []*judged
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	before := map[string][]*judged{}
	for _, j := range all {
		before[j.What] = append(before[j.What], j)
	}
	return before, err
}

// judge runs hasp-torture. What goes wrong with that is noted: the others can be judged yet.
func (p peer) judge(torture string, duration time.Duration) *judged {
	j := &judged{What: p.what}
	if err := p.run(j, torture, duration); err != nil {
		j.Why = err.Error()
	}
	return j
}

func (p peer) run(j *judged, torture string, duration time.Duration) error {
	exe, err := self()
	if err != nil {
		return err
	}
	server, err := address(p.server)
	if err != nil {
		return err
	}
	url := p.store + server
	if j.Store, _, _ = strings.Cut(url, ":"); j.Store == "http" {
		j.Store = "redis"
	}
	if p.library == "hasp-lock" {
		if err := compileTypeScript(); err != nil {
			return err
		}
	}
	const ttl = 2 * time.Second
	// Once alone: what is missing is installed, and it says its version.
	one, err := start(p.what, []string{exe, "adapter", p.library, p.kind}, environOf(p, url, server, ttl))
	if err != nil {
		return err
	}
	j.Version = one.version
	one.kill()
	arguments := []string{"--json", "--for", duration.String(), "--ttl", ttl.String(), "--processes", fmt.Sprint(p.processes), "--seed", "1"}
	j.Command = fmt.Sprintf("hasp-torture %s --adapter 'interop adapter %s %s'", strings.Join(arguments, " "), p.library, p.kind)
	cmd := exec.Command(torture, append(arguments, "--adapter", fmt.Sprintf("'%s' adapter %s %s", exe, p.library, p.kind), url)...)
	var said, words bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &words
	ended := cmd.Run() // 1 and 77 are answers, too
	if err := json.Unmarshal(said.Bytes(), &j.Verdict); err != nil {
		return fmt.Errorf("hasp-torture: %v: %s", ended, lastLine(words.String()))
	}
	return nil
}

// environOf has the variables that hasp-torture sets.
func environOf(p peer, url, server string, ttl time.Duration) []string {
	env := environ(server, ttl)
	env[0] = storeVariable + "=" + url
	return env
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// The places of tables in a page have names.
const peersMark = "peers"

func begins(mark string) string { return "<!-- " + mark + " -->\n" }
func ends(mark string) string   { return "<!-- /" + mark + " -->\n" }

// peersTable is for a page. "two at once" are overlaps of a holder that was told, by then, that it
// holds, or was told nothing.
func peersTable(all []*judged) string {
	var b strings.Builder
	b.WriteString("| store | lock | acquisitions | hits | two at once | stopped or in flight | lost updates | false \"released\" | stuck | verdict |\n")
	b.WriteString("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n")
	for _, j := range all {
		b.WriteString(row(j))
	}
	return b.String()
}

func row(j *judged) string {
	v := j.Verdict
	if j.Why != "" {
		return fmt.Sprintf("| %s | %s | not run: %s | | | | | | | |\n", j.Store, j.What, strings.ReplaceAll(j.Why, "\n", " "))
	}
	lost := fmt.Sprintf("%d of %d", v.Plain, v.Writes)
	if v.Fencing {
		lost += fmt.Sprintf("; %d with the fence", v.Fenced)
	}
	what := j.What
	version, _, _ := strings.Cut(j.Version, ",") // behind a comma is the library below it
	if words := strings.Fields(version); len(words) > 1 && strings.ContainsAny(words[len(words)-1], "0123456789") {
		what += " (" + words[len(words)-1] + ")"
	}
	return fmt.Sprintf("| %s | %s | %d | %d | %d | %d | %s | %d | %d | %s |\n", j.Store, what, v.Acquisitions, v.Hits,
		v.Overlaps.Broken, v.Overlaps.InFlight+v.Overlaps.Told, lost, v.False, len(v.Stuck), v.Result)
}

// putTable replaces what is between two marks of a page.
func putTable(page, mark, table string) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, ok1 := strings.Cut(string(text), begins(mark))
	_, after, ok2 := strings.Cut(rest, ends(mark))
	if !ok1 || !ok2 {
		return fmt.Errorf("%s has no place for the table: %q and %q", filepath.Base(page), begins(mark), ends(mark))
	}
	return os.WriteFile(page, []byte(before+begins(mark)+table+ends(mark)+after), 0o644)
}
