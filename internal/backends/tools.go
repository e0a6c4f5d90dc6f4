package backends

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/hasplock/hasp/internal/serverprocess"
)

// tool is a program, or a set of programs, that a server needs.
type tool struct {
	name  string
	debs  []string               // Debian's packages that bring it
	files []string               // patterns; the first file matching each must exist
	make  func() (string, error) // for tools that are built here and not installed
}

// The patterns say where Debian puts a file, because a user's PATH lacks some of these
// directories. Elsewhere PATH is searched for the last part of the pattern.
var (
	redisServer  = chosenRedis()
	javaVM       = &tool{name: "java", debs: []string{"default-jre-headless"}, files: []string{"/usr/bin/java"}}
	zookeeperJar = &tool{name: "zookeeper", debs: []string{"libzookeeper-java"}, files: []string{"/usr/share/java/zookeeper.jar"}}
	oldEtcd      = &tool{name: "etcd 3.4", debs: []string{"etcd-server"}, files: []string{"/usr/bin/etcd"}}
	etcdctl      = &tool{name: "etcdctl", debs: []string{"etcd-client"}, files: []string{"/usr/bin/etcdctl"}}
	newEtcd      = &tool{name: "a current etcd", make: buildEtcd}
	kubeServer   = &tool{name: "a Kubernetes API server", make: buildKube}
	kustomize    = &tool{name: "kustomize", make: buildKustomize}
	postgresql   = &tool{name: "postgresql", debs: []string{"postgresql"}, files: []string{"/usr/lib/postgresql/*/bin/postgres", "/usr/lib/postgresql/*/bin/initdb"}}
	mariadb      = &tool{name: "mariadb", debs: []string{"mariadb-server"}, files: []string{"/usr/sbin/mariadbd", "/usr/bin/mariadb-install-db"}}
	pgbouncer    = &tool{name: "pgbouncer", debs: []string{"pgbouncer"}, files: []string{"/usr/sbin/pgbouncer"}}
	prometheus   = &tool{name: "prometheus", debs: []string{"prometheus"}, files: []string{"/usr/bin/prometheus"}}

	allTools = []*tool{redisServer, javaVM, zookeeperJar, oldEtcd, etcdctl, postgresql, mariadb, pgbouncer, prometheus, newEtcd}
)

// find returns the paths of the tool's files, or an error that says what is missing.
func (t *tool) find() ([]string, error) {
	if t.make != nil {
		path, err := t.make()
		return []string{path}, err
	}
	var found []string
	for _, pattern := range t.files {
		matches, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		if len(matches) == 0 {
			path, err := exec.LookPath(filepath.Base(pattern))
			if err != nil {
				return nil, fmt.Errorf("%s is not installed (no %s)", t.name, pattern)
			}
			matches = []string{path}
		}
		found = append(found, matches[len(matches)-1]) // the newest of several versions
	}
	return found, nil
}

// path returns the tool's i-th file. need has found it before.
func (t *tool) path(i int) string {
	found, err := t.find()
	if err != nil {
		panic(err) // a Start function forgot to name the tool to need
	}
	return found[i]
}

// need skips the test where a tool is missing and cannot be installed, or fails it where servers
// are required. HASP_NO_SERVERS=1 skips every test that needs one: make quick sets it.
func need(tb testing.TB, tools ...*tool) {
	tb.Helper()
	if os.Getenv("HASP_NO_SERVERS") == "1" {
		tb.Skip("needs a server: runs in make test")
	}
	complain := tb.Skip
	if demanded() {
		complain = tb.Fatal
	}
	if !serverprocess.Supported {
		complain("backends: real servers are started on Linux only")
	}
	if err := install(os.Stderr, tools); err != nil {
		complain(err)
	}
}
