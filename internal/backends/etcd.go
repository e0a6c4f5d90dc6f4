package backends

import (
	"bytes"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/serverprocess"
)

// EtcdOptions configure etcd. The zero value is a current etcd in plaintext.
type EtcdOptions struct {
	Old bool // Debian's etcd 3.4 instead of a current one
	TLS bool // for clients

	Config map[string]any // more of etcd's configuration file: "quota-backend-bytes": 1 << 20
}

// Etcd is one member, of a cluster or alone.
type Etcd struct {
	*Process
	Addr string      // host:port for clients
	TLS  *tls.Config // trusts the server's certificate; nil without EtcdOptions.TLS
	CA   string      // file of the certificate that signed the server's; "" without TLS

	config map[string]any // of a member
	dir    string
}

// EtcdCluster is three members.
type EtcdCluster struct {
	group
	Members []*Etcd
}

// StartEtcd starts a single member for this test alone.
func StartEtcd(tb testing.TB, o EtcdOptions) *Etcd {
	tb.Helper()
	return private(tb, func() (*Etcd, error) { return startEtcd(o) }, o.tool())
}

var sharedEtcd once[*Etcd]

// SharedEtcd returns the process's single member, a current etcd.
func SharedEtcd(tb testing.TB) *Etcd {
	tb.Helper()
	return sharedEtcd.get(tb, func() (*Etcd, error) { return startEtcd(EtcdOptions{}) }, newEtcd)
}

// StartEtcdCluster starts three members for this test alone.
func StartEtcdCluster(tb testing.TB, o EtcdOptions) *EtcdCluster {
	tb.Helper()
	return private(tb, func() (*EtcdCluster, error) { return startEtcdCluster(3, o) }, o.tool())
}

var sharedEtcdCluster once[*EtcdCluster]

// SharedEtcdCluster returns the process's three members, of a current etcd.
func SharedEtcdCluster(tb testing.TB) *EtcdCluster {
	tb.Helper()
	return sharedEtcdCluster.get(tb, func() (*EtcdCluster, error) { return startEtcdCluster(3, EtcdOptions{}) }, newEtcd)
}

// Etcdctl returns the path of etcd's own command-line client.
func Etcdctl(tb testing.TB) string {
	tb.Helper()
	need(tb, etcdctl)
	return etcdctl.path(0)
}

// Addrs are the addresses of all members.
func (c *EtcdCluster) Addrs() []string {
	var addrs []string
	for _, m := range c.Members {
		addrs = append(addrs, m.Addr)
	}
	return addrs
}

// URL is the member's address as etcd's own tools want it.
func (e *Etcd) URL() string {
	if e.TLS != nil {
		return "https://" + e.Addr
	}
	return "http://" + e.Addr
}

func (o EtcdOptions) tool() *tool {
	if o.Old {
		return oldEtcd
	}
	return newEtcd
}

func startEtcd(o EtcdOptions) (*Etcd, error) {
	c, err := startEtcdCluster(1, o)
	if err != nil {
		return nil, err
	}
	return c.Members[0], nil
}

// startEtcdCluster starts n members at the same time: none serves before a majority has
// found together.
func startEtcdCluster(n int, o EtcdOptions) (*EtcdCluster, error) {
	configs := make([]map[string]any, n)
	releases := make([]func(), n)
	var names []string
	for i := range n {
		var err error
		if configs[i], releases[i], err = newEtcdConfig(fmt.Sprintf("m%d", i)); err != nil {
			return nil, err
		}
		names = append(names, etcdPeer(configs[i]))
	}
	members, err := startAll(n, func(i int) (*Etcd, error) {
		configs[i]["initial-cluster"] = strings.Join(names, ",")
		return startEtcdMember(configs[i], releases[i], o)
	})
	if err != nil {
		return nil, err
	}
	c := &EtcdCluster{Members: members}
	for _, m := range members {
		c.group = append(c.group, m.Process)
	}
	return c, nil
}

// newEtcdConfig returns the settings of a member; what else it needs is initial-cluster.
func newEtcdConfig(name string) (config map[string]any, release func(), err error) {
	ports, release, err := serverprocess.ReservePorts(2)
	if err != nil {
		return nil, nil, err
	}
	peer := "http://" + serverprocess.Local(ports[1])
	return map[string]any{
		"name": name, "data-dir": "data",
		"listen-peer-urls": peer, "initial-advertise-peer-urls": peer,
		"listen-client-urls": serverprocess.Local(ports[0]), // scheme: startEtcdMember
		"log-outputs":        []string{"stderr"}, "log-level": "warn", "logger": "zap",
		"enable-grpc-gateway": true, // what the ready check speaks
	}, release, nil
}

// etcdPeer is a member as initial-cluster names it.
func etcdPeer(config map[string]any) string {
	return fmt.Sprint(config["name"], "=", config["listen-peer-urls"])
}

// StartEtcdLearner starts a member that learns from a cluster and does not vote, for this test
// alone. The cluster is of one member, which was started with the same options.
func StartEtcdLearner(tb testing.TB, e *Etcd, o EtcdOptions) *Etcd {
	tb.Helper()
	return private(tb, func() (*Etcd, error) { return startEtcdLearner(e, o) }, o.tool())
}

func startEtcdLearner(e *Etcd, o EtcdOptions) (*Etcd, error) {
	config, release, err := newEtcdConfig("learner")
	if err != nil {
		return nil, err
	}
	var added struct {
		Members []struct{ PeerURLs []string }
	}
	question := map[string]any{"peerURLs": []any{config["listen-peer-urls"]}, "isLearner": true}
	if err := e.post("/v3/cluster/member/add", question, &added); err != nil {
		return nil, err
	}
	cluster := []string{etcdPeer(config)}
	for _, m := range added.Members {
		if m.PeerURLs[0] != config["listen-peer-urls"] {
			cluster = append(cluster, "m0="+m.PeerURLs[0])
		}
	}
	config["initial-cluster"], config["initial-cluster-state"] = strings.Join(cluster, ","), "existing"
	return startEtcdMember(config, release, o)
}

func startEtcdMember(config map[string]any, release func(), o EtcdOptions) (*Etcd, error) {
	e := &Etcd{Addr: config["listen-client-urls"].(string)}
	dir, err := serverprocess.NewDir("etcd", nil)
	if err == nil && o.TLS {
		var c *certificates
		if c, err = newCertificates(dir, nil); err == nil {
			e.TLS, e.CA = c.client, c.ca
			config["client-transport-security"] = map[string]any{"cert-file": c.cert, "key-file": c.key}
		}
	}
	config["listen-client-urls"], config["advertise-client-urls"] = e.URL(), e.URL()
	maps.Copy(config, o.Config)
	yaml, err1 := json.Marshal(config) // any JSON is YAML
	file := filepath.Join(dir, "etcd.yml")
	if err := errors.Join(err, err1); err != nil {
		return nil, err
	}
	if err := serverprocess.WriteFile(file, nil, string(yaml)); err != nil {
		return nil, err
	}
	e.config, e.dir = config, dir
	e.Process, err = serverprocess.Start(serverprocess.Command{
		Name: "etcd " + e.Addr, Argv: []string{o.tool().path(0), "--config-file", file}, Dir: dir,
		Release: release, Stop: serverprocess.Terminate,
		Ready: func() error {
			if config["initial-cluster-state"] == "existing" { // a learner answers nothing else
				return e.post("/v3/kv/range", map[string]any{"key": b64("any"), "serializable": true}, &struct{}{})
			}
			_, err := e.get("any")
			return err
		},
	})
	return e, err
}

// StartEtcdProxy starts `etcd grpc-proxy` in front of members in plaintext, for this test alone. Of
// the options it looks at the version.
func StartEtcdProxy(tb testing.TB, o EtcdOptions, members ...*Etcd) *Etcd {
	tb.Helper()
	return private(tb, func() (*Etcd, error) { return startEtcdProxy(o, members) }, o.tool())
}

func startEtcdProxy(o EtcdOptions, members []*Etcd) (*Etcd, error) {
	ports, release, err := serverprocess.ReservePorts(1)
	if err != nil {
		return nil, err
	}
	dir, err := serverprocess.NewDir("etcdproxy", nil)
	if err != nil {
		return nil, err
	}
	var endpoints []string
	for _, m := range members {
		endpoints = append(endpoints, m.URL())
	}
	p := &Etcd{Addr: serverprocess.Local(ports[0])}
	p.Process, err = serverprocess.Start(serverprocess.Command{
		Name: "etcd grpc-proxy " + p.Addr, Dir: dir, Release: release, Stop: serverprocess.Terminate,
		Argv: []string{
			o.tool().path(0), "grpc-proxy", "start", "--endpoints", strings.Join(endpoints, ","),
			"--listen-addr", p.Addr,
		},
		Ready: p.healthy,
	})
	return p, err
}

// healthy asks a proxy whether the cluster behind it answers.
func (e *Etcd) healthy() error {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 2 * time.Second}
	reply, err := client.Get(e.URL() + "/health")
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	if reply.StatusCode != http.StatusOK {
		return fmt.Errorf("%s is not healthy: %s", e.Addr, reply.Status)
	}
	return nil
}

// get reads a key through etcd's JSON gateway: a linearizable read, which only a member
// in touch with a leader answers. "" means that there is no such key.
func (e *Etcd) get(key string) (string, error) {
	var answer struct {
		Kvs []struct{ Value []byte }
	}
	err := e.post("/v3/kv/range", map[string]string{"key": b64(key)}, &answer)
	if err != nil || len(answer.Kvs) == 0 {
		return "", err
	}
	return string(answer.Kvs[0].Value), nil
}

func (e *Etcd) put(key, value string) error {
	return e.post("/v3/kv/put", map[string]string{"key": b64(key), "value": b64(value)}, &struct{}{})
}

func (e *Etcd) post(path string, question, answer any) error {
	body, err := json.Marshal(question)
	if err != nil {
		return err
	}
	transport := &http.Transport{TLSClientConfig: e.TLS, DisableKeepAlives: true}
	client := http.Client{Transport: transport, Timeout: 2 * time.Second}
	reply, err := client.Post(e.URL()+path, "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	text, err := io.ReadAll(reply.Body)
	if err := errors.Join(err, reply.Body.Close()); err != nil {
		return err
	}
	if reply.StatusCode != http.StatusOK {
		return fmt.Errorf("%s to %s: %s: %s", path, e.Addr, reply.Status, text)
	}
	return json.Unmarshal(text, answer)
}

// Restore replaces the data of a current etcd, alone and stopped, by those of a snapshot, as etcdutl
// does. The revisions go on behind the snapshot's and bump more; those before are compacted if bump
// is not 0. Restart begins with them.
func (e *Etcd) Restore(snapshot string, bump int) error {
	data := filepath.Join(e.dir, e.config["data-dir"].(string))
	if err := os.RemoveAll(data); err != nil {
		return err
	}
	peer := e.config["listen-peer-urls"].(string)
	out, err := exec.Command(newEtcd.path(0), "restore", snapshot, data, e.config["name"].(string), peer, fmt.Sprint(bump)).CombinedOutput()
	if err != nil {
		return fmt.Errorf("restore %s: %w: %s", snapshot, err, out)
	}
	return nil
}

func b64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
