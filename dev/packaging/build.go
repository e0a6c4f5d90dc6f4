package main

import (
	"debug/buildinfo"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// file is one that is installed.
type file struct {
	path string // below the root directory
	from string // the file to copy; "": text
	text []byte
	mode fs.FileMode
}

func (f file) content() ([]byte, error) {
	if f.from == "" {
		return f.text, nil
	}
	return os.ReadFile(f.from)
}

// build builds the commands into a directory, and does not follow the settings of go env on this
// machine. Without -s they would be half as large again, by what only debuggers read, and without
// grpcnotrace by two thirds (see the Makefile).
func (r *release) build(platform, dir string) error {
	goos, goarch, _ := strings.Cut(platform, "/")
	for _, program := range []string{"cmd/hasp", "torture/hasp-torture"} {
		_, err := r.runIn(program, []string{"GOOS=" + goos, "GOARCH=" + goarch, "CGO_ENABLED=0", "GOAMD64=v1", "GOARM64=v8.0", "GOFLAGS=-mod=readonly", "GOEXPERIMENT="},
			"go", "build", "-trimpath", "-buildvcs=true", "-tags", "grpcnotrace", "-o", dir+string(filepath.Separator),
			"-ldflags", "-s -X github.com/hasplock/hasp/cmd/hasp/internal/cli.release="+r.version, ".")
		if err != nil {
			return err
		}
	}
	return nil
}

// commonFiles are those of all platforms.
func (r *release) commonFiles(programs string) ([]file, error) {
	hasp := filepath.Join(programs, "hasp")
	files, err := r.manual(hasp, "distributed locks for commands")
	if err != nil {
		return nil, err
	}
	torture, err := r.manual(hasp+"-torture", "stop, cut off and kill clients of a store, and judge what they believed")
	if err != nil {
		return nil, err
	}
	files = append(files, torture...)
	for shell, path := range map[string]string{
		"bash": "usr/share/bash-completion/completions/hasp",
		"fish": "usr/share/fish/vendor_completions.d/hasp.fish",
		"zsh":  "usr/share/zsh/vendor-completions/_hasp",
	} {
		script, err := r.run(hasp, "completion", shell)
		if err != nil {
			return nil, err
		}
		files = append(files, file{path, "", []byte(script), 0o644})
	}
	units, err := filepath.Glob(filepath.Join(r.root, "dev", "packaging", "systemd", "*"))
	if err != nil || len(units) == 0 {
		return nil, fmt.Errorf("%d units: %w", len(units), err)
	}
	for _, unit := range units {
		dir := "usr/share/doc/hasp/examples/"                // to be copied and changed
		if strings.HasPrefix(filepath.Base(unit), "hasp-") { // of hasp itself
			dir = "lib/systemd/system/"
		}
		files = append(files, file{dir + filepath.Base(unit), unit, nil, 0o644})
	}
	docs, err := r.pages()
	return append(files, docs...), err
}

// licenses are ours and those of the modules in a binary, which their terms ask for.
func (r *release) licenses(binary string) ([]byte, error) {
	own, err := os.ReadFile(filepath.Join(r.root, "LICENSE"))
	if err != nil {
		return nil, err
	}
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "hasp\n\n%s", own)
	for _, m := range info.Deps {
		if strings.HasPrefix(m.Path, module) { // ours
			continue
		}
		dir, err := r.runIn("cmd/hasp", nil, "go", "list", "-m", "-f", "{{.Dir}}", m.Path)
		if err != nil {
			return nil, err
		}
		texts, err := licenseTexts(strings.TrimSpace(dir))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.Path, err)
		}
		fmt.Fprintf(&b, "\n\n==== %s %s\n\n%s", m.Path, m.Version, texts)
	}
	gocopy, err := r.runIn("cmd/hasp", nil, "go", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	texts, err := licenseTexts(strings.TrimSpace(gocopy))
	fmt.Fprintf(&b, "\n\n==== Go's standard library\n\n%s", texts)
	return []byte(b.String()), err
}

// licenseTexts are the files about it in a module's directory.
func licenseTexts(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	var all strings.Builder
	for _, e := range entries { // in the order of the alphabet
		name := strings.ToUpper(e.Name())
		if e.IsDir() || !strings.HasPrefix(name, "LICENSE") && !strings.HasPrefix(name, "LICENCE") && !strings.HasPrefix(name, "NOTICE") && !strings.HasPrefix(name, "COPYING") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return "", err
		}
		all.Write(text)
	}
	if all.Len() == 0 {
		return "", fmt.Errorf("there is no license in it: %w", fs.ErrNotExist)
	}
	return all.String(), nil
}

// when is the time of all files: that of the commit, or SOURCE_DATE_EPOCH.
func (r *release) when() (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		var err error
		if text, err = r.run("git", "log", "-1", "--format=%ct"); err != nil {
			return time.Time{}, err
		}
	}
	seconds, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	return time.Unix(seconds, 0).UTC(), err
}

// packager is the maintainer of the Debian package: who was named, or who made the commit. The same
// commit makes the same package.
func (r *release) packager() (string, error) {
	if r.maintainer != "" {
		return r.maintainer, nil
	}
	who, err := r.run("git", "log", "-1", "--format=%cn <%ce>")
	return strings.TrimSpace(who), err
}

func (r *release) run(name string, args ...string) (string, error) {
	return r.runIn(".", nil, name, args...)
}

// runIn runs a command in a directory of the repository and outside the workspace, and returns what
// it prints.
func (r *release) runIn(dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = filepath.Join(r.root, dir)
	cmd.Env = append(append(cmd.Environ(), "GOWORK=off"), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, stderr.String())
	}
	return string(out), nil
}
