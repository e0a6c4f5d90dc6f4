package backends

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/hasplock/hasp/internal/serverprocess"
)

// Both are built once per process. An unchanged program is only looked up, which takes a moment.
var (
	buildEtcd = sync.OnceValues(func() (string, error) { return buildServer("etcdserver") })
	// The first time takes four minutes on two cores, and 119 MB.
	buildKube      = sync.OnceValues(func() (string, error) { return buildServer("kubeserver", "-ldflags=-s -w "+kubeVersion) })
	buildKustomize = sync.OnceValues(func() (string, error) { return buildServer("kubeserver/kustomize") })
)

// kubeVersion sets what Kubernetes' own build puts into the program: that of kubeserver/go.mod.
const kubeVersion = "-X k8s.io/component-base/version.gitVersion=v1.37.2 -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37"

// buildServer builds a server of a separate module in a directory here, and returns the program.
func buildServer(source string, flags ...string) (string, error) {
	name := path.Base(source)
	fail := func(err error) (string, error) {
		return "", fmt.Errorf("build %s: %w (its modules come with `make backends`)", name, err)
	}
	// The source is found through the module, so that a benchmark in another module
	// that replaces ours finds it as well.
	root, err := exec.Command("go", "list", "-f", "{{.Dir}}", "github.com/hasplock/hasp/internal/backends").Output()
	if err != nil {
		return fail(outputOf(err))
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return fail(err)
	}
	cache = filepath.Join(cache, "hasp-backends")
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return fail(err)
	}
	// Tests of several packages run at a time: one builds, the others find it done.
	unlock, err := lockFile(filepath.Join(cache, "lock"))
	if err != nil {
		return fail(err)
	}
	defer unlock()
	built := filepath.Join(cache, name)
	if !exists(built) {
		fmt.Fprintf(os.Stderr, "backends: building %s, which takes some minutes the first time\n", name)
	}
	build := exec.Command("go", slices.Concat([]string{"build", "-trimpath", "-o", built}, flags, []string{"."})...)
	build.Dir = filepath.Join(strings.TrimSpace(string(root)), filepath.FromSlash(source))
	build.Env = append(build.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		return fail(fmt.Errorf("%w\n%s", err, out))
	}
	// We run a copy: go build cannot replace a program that another test is running.
	dir, err := serverprocess.NewDir(name, nil)
	if err != nil {
		return fail(err)
	}
	program := filepath.Join(dir, name)
	if err := copyProgram(program, built); err != nil {
		return fail(err)
	}
	return program, nil
}

func copyProgram(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	// A process that is forked meanwhile would keep the file open, and then it cannot be run.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// outputOf adds what a failed command wrote to its error.
func outputOf(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return fmt.Errorf("%w\n%s", err, exit.Stderr)
	}
	return err
}
