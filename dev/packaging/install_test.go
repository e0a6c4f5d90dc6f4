package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func debOf(t *testing.T) string {
	t.Helper()
	return filepath.Join(released(t).out, fmt.Sprintf("hasp_%s_linux_%s.deb", strings.TrimPrefix(version, "v"), runtime.GOARCH))
}

// dpkg installs the package, what it installed works, and nothing stays when it is removed.
func TestDeb(t *testing.T) {
	need(t, "dpkg", "man")
	if os.Geteuid() != 0 {
		t.Skip("only root can install a package")
	}
	deb, root := debOf(t), t.TempDir()
	for _, dir := range []string{"updates", "info"} {
		if err := os.MkdirAll(filepath.Join(root, "var/lib/dpkg", dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "var/lib/dpkg/status"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	dpkg := func(args ...string) string {
		t.Helper()
		return do(t, "dpkg", append([]string{"--root=" + root, "--force-script-chrootless"}, args...)...)
	}
	dpkg("--install", deb)
	if out := dpkg("--status", "hasp"); !strings.Contains(out, "Status: install ok installed") || !strings.Contains(out, "Version: 0.77.0") {
		t.Errorf("%s", out)
	}
	if got := strings.TrimSpace(do(t, "dpkg-deb", "--field", deb, "Maintainer")); got != "Ana Example <ana@example.org>" { // see tagged
		t.Errorf("the maintainer is %q", got)
	}
	dpkg("--verify", "hasp")
	hasp := filepath.Join(root, "usr/bin/hasp")
	if out := do(t, hasp, "version"); !strings.Contains(out, version) {
		t.Errorf("%s", out)
	}
	if out := do(t, hasp+"-torture", "--dry-run", "file:///nowhere"); !strings.Contains(out, "pause") {
		t.Errorf("%s", out)
	}
	if out := do(t, hasp, "run", "--store", "file://"+filepath.Join(root, "locks"), "a", "--", "echo", "locked"); out != "locked\n" {
		t.Errorf("%q", out)
	}
	for file, has := range map[string]string{
		"usr/share/man/man1/hasp.1": "hasp", "usr/share/man/man1/hasp-run.1": "hasp", "usr/share/man/man1/hasp-torture.1": "HASP-TORTURE", "lib/systemd/system/hasp-exporter.service": "ExecStart=/usr/bin/hasp",
		"lib/systemd/system/hasp-serve.service": "ExecStart=/usr/bin/hasp serve",
		"usr/share/doc/hasp/copyright":          "==== github.com/redis/rueidis", "usr/share/doc/hasp/examples/scheduler.service": "hasp elect",
		"usr/share/doc/hasp/examples/nightly-report.timer": "OnCalendar", "usr/share/fish/vendor_completions.d/hasp.fish": "hasp",
		"usr/share/zsh/vendor-completions/_hasp": "#compdef hasp", "usr/share/bash-completion/completions/hasp": "hasp",
	} {
		if text, err := os.ReadFile(filepath.Join(root, file)); err != nil || !strings.Contains(string(text), has) {
			t.Errorf("%s: %v, without %q", file, err, has)
		}
	}
	if out := do(t, "sh", "-c", "MANWIDTH=80 man -l '"+filepath.Join(root, "usr/share/man/man1/hasp-run.1")+"'"); !strings.Contains(out, "hasp") {
		t.Errorf("%s", out)
	}
	cited := map[string]bool{}
	for path, page := range tree(t, filepath.Join(root, "usr/share/man/man1")) {
		for _, doc := range regexp.MustCompile(`docs/[A-Za-z/]+\.(md|json)`).FindAllString(page, -1) {
			cited[doc] = true
			if _, err := os.Stat(filepath.Join(root, "usr/share/doc/hasp", doc)); err != nil || !strings.Contains(page, "/usr/share/doc/hasp") {
				t.Errorf("%s cites %s, and does not say where that is: %v", path, doc, err)
			}
		}
	}
	if len(cited) < 4 {
		t.Errorf("the manual cites %v alone", cited)
	}
	do(t, "bash", "-n", filepath.Join(root, "usr/share/bash-completion/completions/hasp"))

	if err := os.RemoveAll(filepath.Join(root, "locks")); err != nil {
		t.Fatal(err)
	}
	dpkg("--purge", "hasp")
	for path := range tree(t, root) {
		if !strings.HasPrefix(path, "/var/") {
			t.Errorf("left behind: %s", path)
		}
	}
}

// systemd finds nothing wrong in the units, and does in one that is wrong.
func TestUnits(t *testing.T) {
	need(t, "systemd-analyze")
	root := t.TempDir()
	do(t, "dpkg-deb", "-x", debOf(t), root)
	verify := func(unit string) (string, error) {
		text, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		// The command is in another place than it will be, and so is its manual.
		changed := strings.ReplaceAll(string(text), "/usr/bin/hasp", filepath.Join(root, "usr/bin/hasp"))
		changed = regexp.MustCompile(`(?m)^Documentation=.*\n`).ReplaceAllString(changed, "")
		at := filepath.Join(root, filepath.Base(unit))
		if err := os.WriteFile(at, []byte(changed), 0o644); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("systemd-analyze", "verify", "--recursive-errors=no", at).CombinedOutput()
		return string(out), err
	}
	units, err := filepath.Glob("systemd/*")
	if err != nil || len(units) < 4 {
		t.Fatalf("%q, %v", units, err)
	}
	slices.Sort(units) // a timer comes behind its service
	for _, unit := range units {
		if out, err := verify(unit); err != nil || out != "" {
			t.Errorf("%s: %v\n%s", unit, err, out)
		}
	}
	wrong := filepath.Join(t.TempDir(), "wrong.service")
	if err := os.WriteFile(wrong, []byte("[Service]\nExecStart=/no/such/command\nKillMod=mixed\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := verify(wrong); err == nil && out == "" {
		t.Error("systemd finds nothing wrong in a wrong unit")
	}
}

// What the Dockerfile puts into the image is all that hasp needs, as a user without a name: it runs
// in a directory that has nothing else.
func TestImage(t *testing.T) {
	r := released(t)
	if os.Geteuid() != 0 {
		t.Skip("only root can change the root directory")
	}
	text, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	_, image, ok := strings.Cut(string(text), "\nFROM scratch\n")
	if !ok {
		t.Fatal("the image is not made from scratch")
	}
	root := t.TempDir()
	for _, m := range regexp.MustCompile(`(?m)^COPY (?:--from=(\w+) )?(\S+) (\S+)$`).FindAllStringSubmatch(image, -1) {
		from := filepath.Join(r.out, strings.ReplaceAll(m[2], "${TARGETARCH}", runtime.GOARCH))
		if m[1] != "" {
			if from = m[2]; !exists(from) { // of another image
				continue
			}
		}
		do(t, "install", "-D", from, filepath.Join(root, m[3]))
	}
	if got := slices.Sorted(maps.Keys(tree(t, root))); !slices.Contains(got, "/hasp") || len(got) > 2 {
		t.Errorf("the image has %q", got)
	}
	locks := filepath.Join(root, "locks") // a volume
	if err := os.Mkdir(locks, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(locks, 65532, 65532); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(root, 0o755); err != nil { // the image's own
		t.Fatal(err)
	}
	if !strings.Contains(image, "\nUSER 65532:65532\n") {
		t.Error("the image's user is not 65532")
	}
	run := func(args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		c := exec.CommandContext(ctx, "/hasp", args...)
		c.Dir, c.Env = "/", []string{"HASP_STORE=file:///locks"}
		c.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
		out, err := c.CombinedOutput()
		return string(out), err
	}
	for _, args := range [][]string{{"version"}, {"ls"}, {"doctor"}} {
		if out, err := run(args...); err != nil {
			t.Errorf("%q: %v\n%s", args, err, out)
		}
	}
	// The control: what is not in the image is not there.
	if out, err := run("ls", "--store", "file:///elsewhere"); err == nil {
		t.Errorf("a store outside the volume: %s", out)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
