package backends

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hasplock/hasp/internal/serverprocess"
)

// Install installs and builds everything that this package starts and tells w about it.
func Install(w io.Writer) error {
	if !serverprocess.Supported {
		return errors.New("backends: real servers are started on Linux only")
	}
	if err := install(w, allTools); err != nil {
		return err
	}
	for _, t := range allTools {
		found, err := t.find()
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "backends: %s: %s\n", t.name, found[0])
	}
	return nil
}

// InstallProgram installs a program that is not a server, such as another language's client, where
// we may install Debian's packages; debs are those that bring it.
func InstallProgram(w io.Writer, name string, debs ...string) error {
	return install(w, []*tool{{name: name, debs: debs, files: []string{"/usr/bin/" + name}}})
}

// install makes sure that tools are there: the missing ones are installed by one
// apt-get where we may. Otherwise its error says what a person should do.
func install(w io.Writer, tools []*tool) error {
	if missing, _ := missingOf(tools); len(missing) == 0 {
		return nil
	}
	// The packages under test run at the same time, and each may come here.
	unlock, err := lockFile(filepath.Join(os.TempDir(), "hasp-backends-install.lock"))
	if err != nil {
		return err
	}
	defer unlock()
	missing, whatIsMissing := missingOf(tools) // again: another may have installed them
	if len(missing) == 0 {
		return nil
	}
	debs := debsOf(missing)
	if len(debs) == 0 {
		return fmt.Errorf("backends: %w", whatIsMissing)
	}
	if !canInstall() {
		return fmt.Errorf("backends: %w: run `make backends` as root on Debian, or install %s", whatIsMissing, strings.Join(debs, ", "))
	}
	fmt.Fprintf(w, "backends: installing %s\n", strings.Join(debs, ", "))
	if err := aptInstall(w, debs); err != nil {
		return fmt.Errorf("backends: %w: installing %s: %w", whatIsMissing, strings.Join(debs, ", "), err)
	}
	if _, err := missingOf(missing); err != nil {
		return fmt.Errorf("backends: after installing %s: %w", strings.Join(debs, ", "), err)
	}
	return nil
}

func missingOf(tools []*tool) ([]*tool, error) {
	var missing []*tool
	var errs []error
	for _, t := range tools {
		if _, err := t.find(); err != nil {
			missing, errs = append(missing, t), append(errs, err)
		}
	}
	return missing, errors.Join(errs...)
}

// debsOf lists the packages of tools, each once.
func debsOf(tools []*tool) []string {
	var debs []string
	for _, t := range tools {
		debs = append(debs, t.debs...)
	}
	slices.Sort(debs)
	return slices.Compact(debs)
}

// canInstall reports whether we may install Debian packages without asking anybody.
func canInstall() bool {
	_, debian := os.Stat("/etc/debian_version")
	_, apt := exec.LookPath("apt-get")
	return os.Geteuid() == 0 && debian == nil && apt == nil
}

func aptInstall(w io.Writer, debs []string) error {
	allow, err := forbidDaemons()
	if err != nil {
		return err
	}
	defer allow()
	if err := aptGet(w, "update"); err != nil {
		return err
	}
	// Recommended packages would bring desktops' and administrators' tools.
	return aptGet(w, append([]string{"install", "-y", "--no-install-recommends"}, debs...)...)
}

func aptGet(w io.Writer, args ...string) error {
	// Wait for another apt-get instead of failing at once.
	cmd := exec.Command("apt-get", append([]string{"-q", "-o", "DPkg::Lock::Timeout=300"}, args...)...)
	cmd.Env = append(cmd.Environ(), "DEBIAN_FRONTEND=noninteractive")
	cmd.Stdout, cmd.Stderr = w, w
	return cmd.Run()
}

// forbidDaemons keeps packages from starting their own servers while they are installed: the tests
// do not need them, and they would take the well-known ports. A machine's existing policy stays.
// allow undoes it.
func forbidDaemons() (allow func(), err error) {
	const policy = "/usr/sbin/policy-rc.d"
	f, err := os.OpenFile(policy, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if errors.Is(err, os.ErrExist) {
		return func() {}, nil
	}
	if err != nil {
		return nil, err
	}
	_, err = io.WriteString(f, "#!/bin/sh\nexit 101\n")
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, errors.Join(err, os.Remove(policy))
	}
	return func() { _ = os.Remove(policy) }, nil
}
