package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// release makes the commit of a release, beside the current branch, and its tags: one for each
// module, as Go wants them. In that commit our modules require each other at the version; on the
// branch they go on to require what lies beside them, by replace directives, with which go install
// would refuse the command. The modules that no program imports keep theirs.
//
// A go.sum file of that commit has the sums of those of our modules that are required: without
// them no module would build there, nor the binaries of the release. A sum depends on the files of
// its module alone, so the modules are summed in the order in which they require each other, and
// the tags move on to the commit that has all sums. Go itself makes the sums, from the tags of this
// clone: it adds the root's LICENSE to the files of a module without one, and leaves out others.
//
// proxy is made: what Go has downloaded for that, a module proxy's files. With GOPROXY=file://PROXY
// in front of the usual one, the release can be built and tried before the tags are pushed.
func release(version, proxy string) (err error) {
	branch, err := releasable(version, proxy)
	if err != nil {
		return err
	}
	if err := compatible(version); err != nil {
		return err
	}
	if _, err := run(".", "git", "checkout", "-q", "--detach"); err != nil {
		return err
	}
	defer func() {
		_, back := run(".", "git", "checkout", "-q", "-f", branch)
		err = errors.Join(err, back)
	}()
	ordered, err := requireEachOther(version)
	if err != nil {
		return err
	}
	if _, err := run(".", "git", "commit", "-q", "--allow-empty", "-a", "-m", "release "+version); err != nil {
		return err
	}
	sums := map[string]string{} // the lines of go.sum, by directory
	for _, dir := range ordered {
		if err := writeSums(dir, sums); err != nil {
			return err
		}
		if _, err := run(".", "git", "commit", "-q", "--allow-empty", "-a", "--amend", "--no-edit"); err != nil {
			return err
		}
		if sums[dir], err = download([]string{dir}, version, ""); err != nil {
			return err
		}
	}
	all, err := download(ordered, version, proxy)
	if err != nil {
		return err
	}
	var before string
	for _, dir := range ordered {
		before += sums[dir]
	}
	if all != before {
		return fmt.Errorf("the sums of the last commit differ from those in its go.sum files:\n%s\n%s", before, all)
	}
	fmt.Println("git push origin", strings.Join(tags(version), " "))
	return nil
}

// releasable refuses what cannot be released, and returns the branch.
func releasable(version, proxy string) (string, error) {
	if !regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9a-z.]+)?$`).MatchString(version) {
		return "", fmt.Errorf("%q is not a version such as v1.2.3", version)
	}
	if _, err := os.Stat(proxy); !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%s is there already: remove it first", proxy)
	}
	changed, err1 := run(".", "git", "status", "--porcelain")
	tagged, err2 := run(".", "git", "tag", "--list", version, "*/"+version)
	branch, err3 := run(".", "git", "symbolic-ref", "--short", "HEAD")
	err := errors.Join(err1, err2, err3)
	switch {
	case err != nil:
	case changed != "":
		err = fmt.Errorf("commit or remove first what has changed:\n%s", changed)
	case tagged != "":
		err = fmt.Errorf("there are tags of %s:\n%s", version, tagged)
	}
	return strings.TrimSpace(branch), err
}

func tags(version string) []string {
	all := make([]string, len(published))
	for i, dir := range published {
		all[i] = path.Join(dir, version)
	}
	return all
}

// requireEachOther edits the go.mod files, and returns the published modules, each behind those that
// it requires.
func requireEachOther(version string) ([]string, error) {
	var ordered []string
	needs := map[string][]string{}
	for _, dir := range slices.Concat(published, unpublished) {
		mod, err := requires(dir)
		if err != nil {
			return nil, err
		}
		needs[dir] = mod.ours()
		for _, d := range needs[dir] {
			edit := []string{"mod", "edit", "-require=" + importPath(d) + "@" + version}
			if slices.Contains(published, dir) {
				edit = append(edit, "-dropreplace="+importPath(d))
			}
			if _, err := run(dir, "go", edit...); err != nil {
				return nil, err
			}
		}
	}
	for len(ordered) < len(published) {
		before := len(ordered)
		for _, dir := range published {
			missing := func(d string) bool { return !slices.Contains(ordered, d) }
			if missing(dir) && !slices.ContainsFunc(needs[dir], missing) {
				ordered = append(ordered, dir)
			}
		}
		if len(ordered) == before {
			return nil, fmt.Errorf("of %q, some require each other", published)
		}
	}
	return ordered, nil
}

// writeSums adds to the go.sum of dir the lines of those of our modules that it requires. A go.mod
// file names all that are linked, so none is missing. The lines stand where Go would write them.
func writeSums(dir string, sums map[string]string) error {
	mod, err := requires(dir)
	if err != nil || len(mod.ours()) == 0 {
		return err
	}
	file := filepath.Join(filepath.FromSlash(dir), "go.sum")
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	lines := slices.Collect(strings.Lines(string(text)))
	for _, d := range mod.ours() {
		lines = append(lines, slices.Collect(strings.Lines(sums[d]))...)
	}
	module := func(line string) string { path, _, _ := strings.Cut(line, " "); return path }
	slices.SortStableFunc(lines, func(a, b string) int { return strings.Compare(module(a), module(b)) })
	if err := os.WriteFile(file, []byte(strings.Join(lines, "")), 0o644); err != nil {
		return err
	}
	_, err = run(".", "git", "add", file)
	return err
}

// download tags the commit for the modules of dirs, and has Go download them from this clone. It
// returns their lines of go.sum. to is where the files go that a proxy has of them; "": nowhere.
func download(dirs []string, version, to string) (sums string, err error) {
	cache, err := os.MkdirTemp("", "hasp-release-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(cache)
	here, err := filepath.Abs(".")
	if err != nil {
		return "", err
	}
	config := filepath.Join(cache, "gitconfig")
	text := fmt.Sprintf("[url %q]\n\tinsteadOf = https://%s\n[protocol \"file\"]\n\tallow = always\n", here, root)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return "", err
	}
	env := []string{"GOWORK=off", "GIT_CONFIG_GLOBAL=" + config, "GOMODCACHE=" + cache, "GOFLAGS=-modcacherw", "GOPRIVATE=" + root, "GOPROXY=direct"}
	for _, dir := range dirs {
		tag := path.Join(dir, version)
		if _, err := run(".", "git", "tag", "-f", "-a", "-m", tag, tag); err != nil {
			return "", err
		}
		out, err := runWith(env, cache, "go", "mod", "download", "-json", importPath(dir)+"@"+version)
		if err != nil {
			return "", err
		}
		var got struct{ Sum, GoModSum string }
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			return "", err
		}
		sums += fmt.Sprintf("%s %s %s\n%[1]s %[2]s/go.mod %[4]s\n", importPath(dir), version, got.Sum, got.GoModSum)
	}
	if to == "" {
		return sums, nil
	}
	return sums, os.CopyFS(to, os.DirFS(filepath.Join(cache, "cache", "download")))
}
