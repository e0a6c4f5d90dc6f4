// Command modules is about the modules of this repository as their users have them.
//
//	modules weigh                  what each adds to the go.sum of a program that imports all of it
//	modules versions               fails if the workspace links other versions than users get
//	modules api [-update]          fails if what programs see of them is not what is in api/
//	modules use DIR [MODULE ...]   has the module in DIR take ours from this clone
//	modules release v1.2.3 PROXY   commits the go.mod files of a release, tags each module, and makes
//	                               the directory PROXY, from which Go takes them before they are published
//
// It runs in the repository's directory.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

const root = "github.com/hasplock/hasp"

// imported are the directories of the modules that programs import.
var imported = []string{
	".", "etcdlock", "kubelock", "mysqllock", "pglock", "redislock", "redislock/goredis", "s3lock", "zklock",
	"adapters", "gocronhasp", "otelhasp", "promhasp", "drivertest/programs",
}

// published are those and the commands.
var published = append(slices.Clone(imported), "cmd/hasp", "cmd/hasp-mcp", "torture")

// unpublished are those of the modules that no program imports.
var unpublished = []string{"dev", "examples", "internal/backends/etcdserver", "internal/backends/kubeserver", "redislock/internal/simulation", "redislock/internal/tests", "tests"}

const usage = "usage: modules weigh | versions | api [-update] | use DIR [MODULE ...] | release VERSION PROXY"

func main() {
	err := errors.New(usage)
	switch args := os.Args[1:]; {
	case len(args) == 1 && args[0] == "weigh":
		err = weigh(os.Stdout)
	case len(args) == 1 && args[0] == "versions":
		err = versions()
	case len(args) == 1 && args[0] == "api", len(args) == 2 && args[0] == "api" && args[1] == "-update":
		err = api(len(args) == 2)
	case len(args) >= 2 && args[0] == "use":
		err = use(os.Stdout, args[1], args[2:])
	case len(args) == 3 && args[0] == "release":
		err = release(args[1], args[2])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "modules:", err)
		os.Exit(1)
	}
}

// importPath is that of the module in dir.
func importPath(dir string) string { return path.Join(root, dir) }

// goMod is the part of a go.mod file that is used.
type goMod struct {
	Require []struct {
		Path     string
		Indirect bool
	}
}

// requires reads which modules the one in dir requires.
func requires(dir string) (goMod, error) {
	var mod goMod
	text, err := run(dir, "go", "mod", "edit", "-json")
	if err == nil {
		err = json.Unmarshal([]byte(text), &mod)
	}
	return mod, err
}

// ours are those of the modules that are of this repository.
func (m goMod) ours() (dirs []string) {
	for _, r := range m.Require {
		if dir, is := strings.CutPrefix(r.Path, root); is {
			dirs = append(dirs, path.Join(".", dir))
		}
	}
	return dirs
}

// run runs a command outside the workspace and returns what it prints.
func run(dir, name string, args ...string) (string, error) {
	return runWith([]string{"GOWORK=off"}, dir, name, args...)
}

func runWith(env []string, dir, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = filepath.FromSlash(dir)
	cmd.Env = append(cmd.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s in %s: %w\n%s", strings.Join(slices.Concat([]string{name}, args), " "), dir, err, stderr.String())
	}
	return string(out), nil
}
