package main

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"time"
)

// clients are the libraries and tools that this program itself runs, by the name after its argument
// "client"; the other languages have separate programs.
var clients = map[string]func(ctx context.Context, kind, address string, ttl time.Duration) (l locker, version string, err error){
	"hasp":         newOurs,
	"redsync":      newRedsync,
	"bsm":          newBSM,
	"go-zookeeper": newGoZooKeeper,
	"concurrency":  newConcurrency,
	"etcdctl":      newEtcdctl,
	"migrate":      newMigrate,
	"psql":         newPsql,
	"mariadb":      newMariaDB,
	"blind":        newBlind,
	"blunt":        newBlunt,
}

// beClient is this program as a client: the arguments of the protocol, its lines on the
// standard streams.
func beClient(args []string) error {
	if len(args) != 4 {
		return fmt.Errorf("client takes LIBRARY KIND ADDRESS TTL_MS, not %q", args)
	}
	open, ok := clients[args[0]]
	if !ok {
		return fmt.Errorf("no client %q", args[0])
	}
	ms, err := strconv.Atoi(args[3])
	if err != nil {
		return err
	}
	l, version, err := open(context.Background(), args[1], args[2], time.Duration(ms)*time.Millisecond)
	if err != nil {
		return err
	}
	return serve(l, version, os.Stdin, os.Stdout)
}

// moduleVersion is the version that this program was built with: go.mod pins the Go libraries.
func moduleVersion(path string) string {
	info, _ := debug.ReadBuildInfo()
	for _, m := range info.Deps {
		if m.Path == path {
			return m.Version
		}
	}
	return "of unknown version"
}

// retryPause is how often the libraries that cannot be woken are told to look.
const retryPause = 10 * time.Millisecond
