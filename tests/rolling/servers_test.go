package rolling_test

import (
	"bufio"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/serverprocess"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// The same of hasp serve: an old server beside a new one, each with the clients of the other version.
func TestServersInTurn(t *testing.T) {
	testtier.Long(t)
	before, now := servers(t)
	before.store, now.store = now.serve(t), before.serve(t)
	inTurn(t, before, now, does{waiters: true, tokens: true, races: true})
}

// And the clients of other languages: those of one version at the server of the other, beside its
// command.
func TestClientsInTurn(t *testing.T) {
	testtier.Long(t)
	before, now := servers(t)
	before.store, now.store = before.serve(t), now.serve(t)
	tree, err := oldTree()
	if err != nil {
		t.Fatal(err)
	}
	for language, hold := range map[string]func(t *testing.T, tree, server string) *exec.Cmd{"Python": holdInPython, "TypeScript": holdInTypeScript} {
		t.Run(language+"/old client", func(t *testing.T) { clientInTurn(t, now, func() *exec.Cmd { return hold(t, tree, now.store) }) })
		t.Run(language+"/new client", func(t *testing.T) { clientInTurn(t, before, func() *exec.Cmd { return hold(t, root(), before.store) }) })
	}
}

// servers are both versions, on one Redis.
func servers(t *testing.T) (before, now program) {
	t.Helper()
	before, now = built(t, "old", oldHasp), built(t, "new", newHasp)
	before.store = "redis://" + redis(t)
	now.store = before.store
	return before, now
}

// serve starts hasp serve, and returns its URL.
func (p program) serve(t *testing.T) string {
	t.Helper()
	c := p.command(t, "serve", "--listen", serverprocess.Local(0), "--log", "off")
	said := testkit.Must[io.ReadCloser](t)(c.StderrPipe())
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Wait() }) // it is killed with the test's context
	listens := make(chan string, 1)
	go func() {
		for lines := bufio.NewScanner(said); lines.Scan(); {
			if _, addr, ok := strings.Cut(lines.Text(), " at http://"); ok {
				listens <- "hasp+http://" + addr
			}
		}
		close(listens)
	}()
	return testkit.Await(t, p.name+" to listen", listens)
}

const pythonHolder = `
import sys, hasplock
client = hasplock.Client(sys.argv[1])
with client.lock("a/b", timeout=60) as lease:
    print("token", lease.token, flush=True)
    sys.stdin.read()
client.close()
`

func holdInPython(t *testing.T, tree, server string) *exec.Cmd {
	c := exec.CommandContext(t.Context(), backends.Python(t), "-c", pythonHolder, strings.TrimPrefix(server, "hasp+"))
	c.Env = []string{"PYTHONPATH=" + filepath.Join(tree, "clients/python/src"), "PYTHONDONTWRITEBYTECODE=1"}
	return c
}

const typeScriptHolder = `
const { Client } = await import(process.argv[1]);
const client = new Client({ url: process.argv[2] });
await client.lock("a/b").run(async (lease) => {
  console.log("token", String(lease.token));
  for await (const _ of process.stdin);
});
await client.close();
`

func holdInTypeScript(t *testing.T, tree, server string) *exec.Cmd {
	backends.NPM(t) // brings node
	module := "file://" + filepath.Join(tree, "clients/typescript/dist/index.js")
	return exec.CommandContext(t.Context(), "node", "--input-type=module", "-e", typeScriptHolder, module, strings.TrimPrefix(server, "hasp+"))
}

// clientInTurn has a client hold, then the command, which has waited, then a client that has.
func clientInTurn(t *testing.T, command program, client func() *exec.Cmd) {
	t.Helper()
	first := begin(t, "the client", client())
	token := first.holds(t)
	if err := command.isExcluded(t); err != nil {
		t.Fatalf("while a client holds, %s: %v", command.name, err)
	}
	second := command.begin(t)
	seen(t, command)
	first.release(t)
	next := second.holds(t)
	third := begin(t, "another client", client())
	seen(t, command)
	second.release(t)
	if last := third.holds(t); token >= next || next >= last {
		t.Errorf("tokens %d, %d, %d", token, next, last)
	}
	third.release(t)
}
