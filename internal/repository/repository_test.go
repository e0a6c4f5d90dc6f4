package repository

import (
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Each directory has the store that git itself says it has, and a submodule that of its parent.
func TestStore(t *testing.T) {
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	base = filepath.Join(base, "a #1%2f? b")
	at := func(parts ...string) string { return filepath.Join(append([]string{base}, parts...)...) }
	git := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("git", append([]string{"-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return strings.TrimSuffix(string(out), "\n")
	}
	repository := func(dir string) {
		git("init", "-q", dir)
		git("-C", dir, "commit", "-q", "--allow-empty", "-m", "first")
	}
	repository(at("deep"))
	repository(at("lib"))
	git("-C", at("lib"), "submodule", "--quiet", "add", at("deep"), "in/deep")
	git("-C", at("lib"), "commit", "-q", "-m", "submodule")
	repository(at("clone"))
	git("-C", at("clone"), "submodule", "--quiet", "add", at("lib"), "lib")
	git("-C", at("clone"), "commit", "-q", "-m", "submodule")
	git("-C", at("clone"), "submodule", "--quiet", "update", "--init", "--recursive")
	git("-C", at("clone"), "worktree", "add", "-q", at("tree"))
	git("-C", at("tree"), "submodule", "--quiet", "update", "--init", "--recursive")
	git("clone", "-q", "--bare", at("lib"), at("bare.git"))
	git("-C", at("bare.git"), "worktree", "add", "-q", at("of-bare"))
	git("init", "-q", "--separate-git-dir", at("elsewhere"), at("separate"))
	for _, dir := range []string{at("clone", "some", "dir"), at("none", ".github")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(at("clone", "some"), at("short")); err != nil {
		t.Fatal(err)
	}
	clone := at("clone", ".git")
	for dir, want := range map[string]string{
		at("clone"): clone, at("clone", "some", "dir"): clone, at("short"): clone, at("tree"): clone,
		at("clone", ".git"): clone, at("clone", ".git", "hooks"): clone, at("clone", ".git", "worktrees", "tree"): clone,
		at("clone", "lib"): clone, at("clone", "lib", "in", "deep"): clone, at("tree", "lib"): clone, at("tree", "lib", "in", "deep"): clone,
		at("lib", "in", "deep"): at("lib", ".git"),
		at("bare.git"):          at("bare.git"), at("bare.git", "refs"): at("bare.git"), at("of-bare"): at("bare.git"),
		at("separate"): at("elsewhere"),
	} {
		text, err := Store(dir)
		u, uerr := url.Parse(text)
		if err != nil || uerr != nil || u.Path != want+"/hasp" || u.RawQuery != "" || u.Fragment != "" {
			t.Errorf("%s: %s, %v, %v; not below %s", dir, text, err, uerr, want)
		}
		if out, err := exec.Command("git", "-C", dir, "rev-parse", "--path-format=absolute", "--git-common-dir").Output(); err != nil {
			t.Errorf("%s: git says %v", dir, err)
		} else if says := strings.TrimSpace(string(out)); says != want && !strings.HasPrefix(says, want+"/modules/") && !strings.HasPrefix(says, want+"/worktrees/tree/modules/") {
			t.Errorf("%s: git says %s, not %s", dir, says, want)
		}
	}
	if text, err := Store(at("none", ".github")); err == nil || !strings.Contains(err.Error(), "is in no git repository") {
		t.Errorf("outside: %q, %v", text, err)
	}
	if err := os.WriteFile(at("none", ".git"), []byte("gitdir: ../gone\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if text, err := Store(at("none")); err == nil || !strings.Contains(err.Error(), "is no git directory") {
		t.Errorf("a lost one: %q, %v", text, err)
	}
	if text, err := Store(at("gone")); err == nil {
		t.Errorf("no directory: %q", text)
	}
}
