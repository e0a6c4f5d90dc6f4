package clients_test

import (
	"testing"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testtier"
)

// The package is compiled and packed by npm, and a program that has installed it uses it; and its tests run, as
// those of the Python client.
func TestTypeScript(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	npm := backends.NPM(t)
	work, env := setUp(t, "typescript")
	run(t, work, nil, "rm", "-rf", "source/node_modules", "source/dist") // a developer's
	run(t, work+"/source", nil, npm, "ci", "--no-audit", "--no-fund")    // compiles: prepare
	run(t, work+"/source", nil, npm, "pack", "--pack-destination", work)
	run(t, work, nil, "mkdir", "user")
	run(t, work+"/user", nil, npm, "install", "--no-audit", "--no-fund", work+"/hasp-lock-0.1.0.tgz")
	run(t, work+"/user", nil, "node", "--input-type=module", "-e", `import { Client } from "hasp-lock"; await new Client().close();`)
	run(t, work+"/source", env, "node", "--test", "test/")
}
