// Command etcdserver is a current etcd, with the flags and commands of etcd's own: one member, or
// `grpc-proxy start`. And `restore SNAPSHOT DATA-DIR NAME PEER-URL BUMP` does what
// `etcdutl snapshot restore` does, with --bump-revision and --mark-compacted unless BUMP is 0.
//
// It is a separate module because etcd's server brings more than a hundred modules, none of which
// belongs into the graph of a lock library.
package main

import (
	"fmt"
	"os"
	"strconv"

	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"go.uber.org/zap"
)

func main() {
	if len(os.Args) != 7 || os.Args[1] != "restore" {
		etcdmain.Main(os.Args)
		return
	}
	if err := restore(os.Args[2], os.Args[3], os.Args[4], os.Args[5], os.Args[6]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func restore(file, dir, name, peer, bump string) error {
	by, err := strconv.ParseUint(bump, 10, 64)
	if err != nil {
		return err
	}
	return snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: file, Name: name, OutputDataDir: dir, PeerURLs: []string{peer}, InitialCluster: name + "=" + peer,
		InitialClusterToken: "etcd-cluster", RevisionBump: by, MarkCompacted: by > 0,
	})
}
