// Command hasp runs commands under locks. See internal/cli, or hasp --help.
package main

import (
	"os"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli"

	// Every store there is, but the one in memory: a command's memory ends with it.
	_ "github.com/hasplock/hasp/etcdlock"
	_ "github.com/hasplock/hasp/filelock"
	_ "github.com/hasplock/hasp/mysqllock"
	_ "github.com/hasplock/hasp/pglock"
	_ "github.com/hasplock/hasp/redislock"
	_ "github.com/hasplock/hasp/redislock/redlock"
	_ "github.com/hasplock/hasp/zklock"
)

func main() { os.Exit(cli.Main()) }
