// Command etcdserver is a current etcd, with the flags and commands of etcd's own: one member, or
// `grpc-proxy start`.
//
// It is a separate module because etcd's server brings more than a hundred modules, none of which
// belongs into the graph of a lock library.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
