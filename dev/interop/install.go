package main

import (
	"crypto/sha256"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/hasplock/hasp/internal/backends"
)

// program is how a foreign client is run.
type program int

const (
	golang program = iota // by this program
	java
	python
	node
)

//go:embed versions.json versions.old.json java python node
var sources embed.FS

// sets are the files of versions, by their names for -versions. Old ones are what distributions
// with long-term support ship, and of that age.
var sets = map[string]string{"new": "versions.json", "old": "versions.old.json"}

// versions are the packages of the other languages: language, package, version. Go's are
// in go.mod, and so there is one of each: a program links one version of a module, and some
// of these hasp itself needs.
func versions(set string) (v map[string]map[string]string, err error) {
	text, err := sources.ReadFile(sets[set])
	if err == nil {
		err = json.Unmarshal(text, &v)
	}
	return v, err
}

// tools are the programs of Debian that clients are run or made by, with their packages.
var tools = map[string][]string{
	"mvn": {"maven"}, "javac": {"default-jdk-headless"}, "java": {"default-jre-headless"},
	"python3": {"python3"}, "pip3": {"python3-pip"}, "node": {"nodejs"}, "npm": {"npm"},
	"etcdctl": {"etcd-client"}, "psql": {"postgresql-client"}, "mariadb": {"mariadb-client"}, "flock": {"util-linux"},
}

// cache keeps what was installed, each language's packages in a folder that is named after
// their versions and our program: another run with the same finds it.
type cache struct {
	dir  string
	set  string // of versions
	once [4]sync.Once
	argv [4][]string
	env  [4][]string
	errs [4]error
}

// command returns how the foreign client of a pair is started, without the arguments of the
// protocol. The first caller installs what it needs.
func (c *cache) command(p pair) (argv, env []string, err error) {
	if err := need(p.library); err != nil {
		return nil, nil, err
	}
	i := p.program
	c.once[i].Do(func() { c.argv[i], c.env[i], c.errs[i] = c.prepare(i) })
	return c.argv[i], c.env[i], c.errs[i]
}

func (c *cache) prepare(p program) (argv, env []string, err error) {
	switch p {
	case java:
		dir, err := c.folder("java", installJava, "mvn", "javac", "java")
		// Small and quick to start: there are many, for a few hundred locks each.
		return []string{"java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m",
			"-cp", filepath.Join(dir, "lib", "*") + ":" + dir, "Client"}, nil, err
	case python:
		dir, err := c.folder("python", installPython, "python3", "pip3")
		return []string{"python3", filepath.Join(dir, "client.py")}, []string{"PYTHONPATH=" + filepath.Join(dir, "lib")}, err
	case node:
		dir, err := c.folder("node", installNode, "node", "npm")
		return []string{"node", filepath.Join(dir, "client.js")}, nil, err
	}
	exe, err := self()
	return []string{exe, "client"}, nil, err
}

// need makes sure of programs, by name; others are none of Debian's.
func need(names ...string) error {
	for _, name := range names {
		if debs, ok := tools[name]; ok {
			if err := backends.InstallProgram(os.Stderr, name, debs...); err != nil {
				return err
			}
		}
	}
	return nil
}

// folder returns the folder of a language, which install fills at the first time. It gets
// its name when it is complete, so that a run that was cut off leaves nothing that looks so.
func (c *cache) folder(language string, install func(dir string, packages map[string]string) error, programs ...string) (string, error) {
	if err := need(programs...); err != nil {
		return "", err
	}
	all, err := versions(c.set)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	fmt.Fprintln(sum, all[language]) // maps are printed in order
	files, err := fs.Glob(sources, language+"/*")
	if err != nil {
		return "", err
	}
	for _, f := range files {
		text, err := sources.ReadFile(f)
		if err != nil {
			return "", err
		}
		sum.Write(text)
	}
	dir := filepath.Join(c.dir, fmt.Sprintf("%s-%.6x", language, sum.Sum(nil)))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	fmt.Fprintf(os.Stderr, "interop: installing for %s: %s\n", language, strings.Join(slices.Sorted(maps.Keys(all[language])), ", "))
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return "", err
	}
	making, err := os.MkdirTemp(c.dir, "making-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(making)
	for _, f := range files {
		text, _ := sources.ReadFile(f) // it was read above
		if err := os.WriteFile(filepath.Join(making, filepath.Base(f)), text, 0o644); err != nil {
			return "", err
		}
	}
	if err := install(making, all[language]); err != nil {
		return "", err
	}
	if err := os.Rename(making, dir); err != nil {
		if _, there := os.Stat(dir); there != nil { // another run was first
			return "", err
		}
	}
	return dir, nil
}

func installJava(dir string, packages map[string]string) error {
	const plugin = "org.apache.maven.plugins:maven-dependency-plugin"
	pom := `<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>` +
		`<groupId>interop</groupId><artifactId>interop</artifactId><version>1</version><dependencies>`
	for _, name := range slices.Sorted(maps.Keys(packages)) {
		if name != plugin {
			group, artifact, _ := strings.Cut(name, ":")
			pom += fmt.Sprintf("<dependency><groupId>%s</groupId><artifactId>%s</artifactId><version>%s</version></dependency>", group, artifact, packages[name])
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "pom.xml"), []byte(pom+"</dependencies></project>"), 0o644); err != nil {
		return err
	}
	if err := runIn(dir, "mvn", "-q", "-B", plugin+":"+packages[plugin]+":copy-dependencies", "-DoutputDirectory=lib"); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.java"))
	if err != nil {
		return err
	}
	return runIn(dir, "javac", append([]string{"-cp", "lib/*", "-d", "."}, files...)...)
}

func installPython(dir string, packages map[string]string) error {
	args := []string{"install", "-q", "--disable-pip-version-check", "--no-input", "--root-user-action=ignore", "--target", "lib"}
	for _, name := range slices.Sorted(maps.Keys(packages)) {
		args = append(args, name+"=="+packages[name])
	}
	return runIn(dir, "pip3", args...)
}

func installNode(dir string, packages map[string]string) error {
	args := []string{"install", "--no-audit", "--no-fund", "--loglevel=error", "--save-exact"}
	for _, name := range slices.Sorted(maps.Keys(packages)) {
		args = append(args, name+"@"+packages[name])
	}
	// npm installs into the nearest parent that has a package.json, if there is none here.
	if err := os.WriteFile(filepath.Join(dir, "package.json"), []byte(`{"private": true}`), 0o644); err != nil {
		return err
	}
	return runIn(dir, "npm", args...)
}

// runIn runs an installer, whose output is of interest only if it fails.
func runIn(dir, program string, args ...string) error {
	cmd := exec.Command(program, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return errors.Join(fmt.Errorf("%s: %w", program, err), errors.New(string(out[max(0, len(out)-2000):])))
	}
	return nil
}
