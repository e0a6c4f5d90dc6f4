package clients_test

import (
	"path/filepath"
	"testing"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testtier"
)

// nodes are the runtimes that the tests use, besides the machine's, which runs npm: versions of npm's
// package node. The first is the oldest that is promised.
var nodes = []string{"18", "22"}

// installNode installs a runtime, and returns its file.
func installNode(t *testing.T, version string) string {
	t.Helper()
	dir := t.TempDir()
	run(t, dir, nil, backends.NPM(t), "install", "--no-audit", "--no-fund", "node@"+version)
	return filepath.Join(dir, "node_modules/.bin/node")
}

const usesNode = `import { Client } from "hasp-lock"; await new Client().close();`

// npm installs the folder, and what it packs, into an empty application, without the network: nothing
// is compiled there. The types are there too, and the license.
func TestTypeScriptInstalled(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	npm, work := backends.NPM(t), setUp(t, "typescript")
	run(t, work+"/source", nil, npm, "pack", "--pack-destination", work)
	for name, what := range map[string]string{"folder": work + "/source", "packed": work + "/hasp-lock-0.1.0.tgz"} {
		t.Run(name, func(t *testing.T) {
			app := t.TempDir()
			run(t, app, nil, npm, "install", "--offline", "--no-audit", "--no-fund", what)
			run(t, app, nil, "node", "--input-type=module", "-e", usesNode)
			run(t, app, nil, "ls", "node_modules/hasp-lock/LICENSE", "node_modules/hasp-lock/dist/index.d.ts")
		})
	}
}

// The repository has the code that the compiler makes, with types that a program is checked by; and
// the client's tests run.
func TestTypeScript(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	npm, work, env := backends.NPM(t), setUp(t, "typescript"), environment(t)
	run(t, work, nil, "mv", "source/dist", "shipped")
	run(t, work+"/source", nil, npm, "ci", "--no-audit", "--no-fund")
	run(t, work+"/source", nil, npm, "run", "build")
	run(t, work, nil, "diff", "-r", "shipped", "source/dist")

	check := []string{"node_modules/.bin/tsc", "--noEmit", "--strict", "--target", "es2022", "--module", "nodenext", "--lib", "es2022,esnext.disposable,dom"}
	source := work + "/source"
	write(t, source+"/right.mts", `import { Client } from "hasp-lock";
		await new Client({ ttl: 10_000, tls: { ca: "" } }).withLock("a", async (lease) => lease.signal.aborted, { timeout: 3 });`)
	run(t, source, nil, append(check, "right.mts")...)
	write(t, source+"/wrong.mts", `import { Client } from "hasp-lock"; new Client({ tttl: 1 }).lock("a", { timeot: 3 });`)
	out, err := try(t, source, nil, append(check, "wrong.mts")...)
	mentions(t, out, err, "tttl", "timeot")

	for _, version := range nodes {
		t.Run("Node "+version, func(t *testing.T) {
			t.Parallel()
			run(t, source, env, installNode(t, version), "--test")
		})
	}
}
