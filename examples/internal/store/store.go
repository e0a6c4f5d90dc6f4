// Package store opens the store that an example runs on: the one that -store or HASP_STORE names,
// else a directory of this machine. A program of yours imports one driver and has one URL.
package store

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hasplock/hasp"

	_ "github.com/hasplock/hasp/etcdlock"
	_ "github.com/hasplock/hasp/filelock"
	_ "github.com/hasplock/hasp/mysqllock"
	_ "github.com/hasplock/hasp/pglock"
	_ "github.com/hasplock/hasp/redislock"
	_ "github.com/hasplock/hasp/redislock/redlock"
	_ "github.com/hasplock/hasp/zklock"
)

var url = flag.String("store", os.Getenv("HASP_STORE"), "URL of the store, such as redis://localhost; default: HASP_STORE, else a directory")

// Open connects to the store. Call flag.Parse before.
func Open(ctx context.Context) (*hasp.Client, error) {
	if *url == "" {
		*url = "file://" + filepath.ToSlash(filepath.Join(os.TempDir(), "hasp-examples"))
	}
	return hasp.Open(ctx, *url)
}

// Exit ends the program. An error is not a detail here: it says that a lock was lost, or that its
// release is not confirmed.
func Exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
