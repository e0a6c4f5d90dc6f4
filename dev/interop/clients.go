package main

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"time"
)

// clients are the libraries and tools that this program itself runs, by the name after its argument
// "client"; the other languages have separate programs.
var clients = map[string]func(ctx context.Context, kind, address string, ttl time.Duration) (l locker, version string, err error){
	"hasp":         newOurs,
	"redsync":      newRedsync,
	"bsm":          newBSM,
	"rueidislock":  newRueidislock,
	"go-zookeeper": newGoZooKeeper,
	"concurrency":  newConcurrency,
	"pgx":          newPgx,
	"etcdctl":      newEtcdctl,
	"migrate":      newMigrate,
	"psql":         newPsql,
	"mariadb":      newMariaDB,
	"blind":        newBlind,
	"blunt":        newBlunt,
}

// takeURL are the clients that take a URL as their address, and not host:port.
var takeURL = []string{"hasp", "migrate", "psql", "pgx", "mariadb"}

// The variables of the protocol.
const (
	storeVariable   = "HASP_STORE"
	addressVariable = "HASP_ADDRESS"
	ttlVariable     = "HASP_TTL_MS"
)

// environ is the environment of a client. A server has one form of address here, which its clients
// know: it stands for both.
func environ(address string, ttl time.Duration) []string {
	return []string{storeVariable + "=" + address, addressVariable + "=" + address, fmt.Sprint(ttlVariable, "=", ttl.Milliseconds())}
}

// beClient is this program as a client: the arguments and variables of the protocol, its lines on
// the standard streams.
func beClient(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("client takes LIBRARY KIND, not %q", args)
	}
	open, ok := clients[args[0]]
	if !ok {
		return fmt.Errorf("no client %q", args[0])
	}
	address := os.Getenv(addressVariable)
	if slices.Contains(takeURL, args[0]) {
		address = os.Getenv(storeVariable)
	}
	ms, err := strconv.Atoi(os.Getenv(ttlVariable))
	if err != nil || address == "" {
		return fmt.Errorf("%s, %s and %s (milliseconds) must be set: %w", storeVariable, addressVariable, ttlVariable, err)
	}
	l, version, err := open(context.Background(), args[1], address, time.Duration(ms)*time.Millisecond)
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
