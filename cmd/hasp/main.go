// Command hasp runs commands under locks. See internal/cli, or hasp --help. The tags noexporter and
// noserve leave out hasp exporter and hasp serve, others a store: see internal/stores.
package main

import (
	"os"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli"
	_ "github.com/hasplock/hasp/cmd/hasp/stores"
)

func main() { os.Exit(cli.Main()) }
