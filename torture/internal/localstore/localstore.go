// Package localstore starts a store of locks on this machine, and disturbs it: hasp-torture
// --local. The server is the program that is installed already; its data are temporary. All that it
// starts ends with it, or with this process (internal/serverprocess).
//
// internal/backends starts the same servers for tests. It is not used here: it links package
// testing, installs and builds what is missing, and offers what no user asks for. How a process is
// run, both share.
package localstore

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hasplock/hasp/internal/serverprocess"
)

// Kinds are the stores that can be started.
var Kinds = []string{"redis", "redlock", "etcd", "zookeeper", "postgres", "mariadb", "file"}

// starters start one server each; file has none.
var starters = map[string]func(*server) error{
	"redis": startRedis, "redlock": startRedis, "etcd": startEtcd, "zookeeper": startZooKeeper, "postgres": startPostgres, "mariadb": startMariaDB,
}

// Spec is the value of --local: a kind, and the parameters of the store's URL.
type Spec struct {
	Kind  string
	query url.Values
}

// Parse reads KIND or KIND?PARAMETERS.
func Parse(text string) (s Spec, err error) {
	kind, query, _ := strings.Cut(text, "?")
	if !slices.Contains(Kinds, kind) {
		return s, fmt.Errorf("%q cannot be started here; there are %s", kind, strings.Join(Kinds, ", "))
	}
	if s.query, err = url.ParseQuery(query); err != nil {
		return s, fmt.Errorf("the parameters of %q cannot be read: %v", kind, err)
	}
	s.Kind = kind
	return s, nil
}

// Servers is how many processes there are to disturb; the methods of Store take one's number.
func (s Spec) Servers() int {
	switch {
	case starters[s.Kind] == nil:
		return 0
	case s.Kind == "redlock":
		return 3 // the fewest of which one may fail
	}
	return 1
}

// MayForget reports whether a lock that was granted may be granted again after the server was
// started anew, with its data (restart) or with those of an earlier time. docs/GUARANTEES.md says
// so per store: a Redis that may have forgotten grants nothing for a while, unless that is switched
// off. hasps says whose locks they are: no other client waits.
func (s Spec) MayForget(restart, hasps bool) bool {
	if s.Kind == "redis" || s.Kind == "redlock" {
		// The append-only file may lag behind the answers, while the one before is synced: also a
		// restart forgets.
		return !hasps || s.query.Get("quarantine") == "off"
	}
	return !restart
}

// Store is a running store.
type Store struct {
	Spec
	url     string
	dir     string // of a file store
	servers []*server
}

// server is one process with its data.
type server struct {
	*serverprocess.Process
	dir   string // of all that belongs to it
	owner *serverprocess.Account
	ports []int
	free  func() // gives the ports back
	url   *url.URL
	ready func() error // asks whether it serves, at url

	gentle bool // it leaves shared memory behind when it is killed, until it is started again
}

// data is the directory that is the server's memory. Relative to dir, where the server works.
const data = "data"

// Ask opens a store, and complains if it does not serve.
type Ask func(ctx context.Context, storeURL string) error

// Start returns when the store serves. ask is called for each server, and at each start of it.
func Start(ctx context.Context, spec Spec, ask Ask) (*Store, error) {
	s := &Store{Spec: spec}
	if spec.Servers() == 0 {
		var err error
		if s.dir, err = os.MkdirTemp("", "hasp-local-"); err != nil {
			return nil, err
		}
		s.url = (&url.URL{Scheme: "file", Path: s.dir, RawQuery: spec.query.Encode()}).String()
		return s, nil
	}
	if !serverprocess.Supported {
		return nil, fmt.Errorf("%s: servers can be started on Linux only", spec.Kind)
	}
	for range spec.Servers() {
		one := &server{}
		one.ready = func() error {
			return patiently(ctx, func(ctx context.Context) error { return ask(ctx, one.url.String()) })
		}
		if err := starters[spec.Kind](one); err != nil {
			return nil, errors.Join(err, one.discard(), s.Close())
		}
		s.servers = append(s.servers, one)
	}
	if err := context.Cause(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.url = s.together()
	return s, nil
}

// patiently bounds one question. Who has given up waits for no server: Start and Restart then
// return soon, and what they say is not looked at.
func patiently(ctx context.Context, ask func(context.Context) error) error {
	if ctx.Err() != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	return ask(ctx)
}

// together is the URL of all servers, with the parameters that were asked for.
func (s *Store) together() string {
	u := *s.servers[0].url
	var hosts []string
	for _, one := range s.servers {
		hosts = append(hosts, one.url.Host)
	}
	u.Host = strings.Join(hosts, ",")
	if s.Kind == "redlock" {
		u.Scheme = "redlock"
	}
	q := u.Query()
	for key, values := range s.query {
		q[key] = values
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// URL names the store for hasp.Open. It may have a password.
func (s *Store) URL() string { return s.url }

// Pause stops a server: its connections stay, and nothing is answered.
func (s *Store) Pause(i int) error { return s.servers[i].Pause() }

// Resume ends Pause.
func (s *Store) Resume(i int) error { return s.servers[i].Resume() }

// Restart kills a server, starts it with its data, and returns when it serves.
func (s *Store) Restart(i int) error {
	return errors.Join(s.servers[i].Kill(), s.servers[i].Process.Restart())
}

// saved is a copy of data, from before the locks that are to be forgotten.
const saved = "saved"

// Save keeps what each server knows now, for Forget. The servers are started anew.
func (s *Store) Save() error {
	for _, one := range s.servers {
		if err := errors.Join(one.Stop(), one.replace(saved, data), one.Process.Restart()); err != nil {
			return err
		}
	}
	return nil
}

// Forget kills a server, starts it with the data that Save has kept, and returns when it serves:
// what happened since is forgotten, as by a backup that was restored. An emptied database would
// have no tables, which clients make when they open it: what is to be shown is not that.
func (s *Store) Forget(i int) error {
	one := s.servers[i]
	return errors.Join(one.Kill(), one.replace(data, saved), one.Process.Restart())
}

// replace makes a directory the copy of another one. cp keeps the owner; os.CopyFS would not.
func (s *server) replace(to, from string) error {
	if err := os.RemoveAll(filepath.Join(s.dir, to)); err != nil {
		return err
	}
	if words, err := exec.Command("cp", "-a", filepath.Join(s.dir, from), filepath.Join(s.dir, to)).CombinedOutput(); err != nil {
		return fmt.Errorf("copy the data of %s: %w: %s", s.Name(), err, words)
	}
	return nil
}

// Close ends the servers and removes their data.
func (s *Store) Close() error {
	var errs []error
	for _, one := range s.servers {
		errs = append(errs, one.discard())
	}
	if s.dir != "" {
		return os.RemoveAll(s.dir)
	}
	serverprocess.Tidy()
	return errors.Join(errs...)
}

// discard is for a server that has been started, or not entirely.
func (s *server) discard() (err error) {
	if s.Process == nil {
		if s.free != nil {
			s.free()
		}
		return os.RemoveAll(s.dir) // of "" it is nothing
	}
	if s.gentle {
		err = s.Stop()
	}
	return errors.Join(err, s.Process.Discard())
}
