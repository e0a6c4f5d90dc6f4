// Command hasp runs commands under locks. See internal/cli, or hasp --help.
package main

import (
	"os"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli"

	// Every store there is, but the one in memory: a command's memory ends with it. Each store with a
	// client library is in a file that a build can leave out: -tags noetcd,nomysql,nopostgres,noredis,
	// nozookeeper, nohttp. The tags noexporter and noserve leave out hasp exporter and hasp serve.
	_ "github.com/hasplock/hasp/filelock"
)

func main() { os.Exit(cli.Main()) }
