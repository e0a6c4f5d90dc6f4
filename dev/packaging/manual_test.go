package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// There is a page for each verb. The real formatter has nothing to say, and breaks no line; columns
// are items, what is to be copied is copied, and hyphens are those of a keyboard.
func TestManual(t *testing.T) {
	need(t, "groff")
	dir := t.TempDir()
	for _, program := range []string{"cmd/hasp", "torture/hasp-torture"} {
		build := exec.Command("go", "build", "-tags", "grpcnotrace", "-o", dir+"/", ".")
		build.Dir, build.Env = "../../"+program, append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	r := &release{root: "../..", version: version}
	pages, err := r.manual(filepath.Join(dir, "hasp"), "locks")
	torture, terr := r.manual(filepath.Join(dir, "hasp-torture"), "faults")
	if err != nil || terr != nil {
		t.Fatal(err, terr)
	}
	pages = append(pages, torture...)
	texts := map[string]string{}
	bold := regexp.MustCompile("\x1b\\[[0-9;]*m|.\b")
	for _, p := range pages {
		page := filepath.Join(dir, filepath.Base(p.path))
		if err := os.WriteFile(page, p.text, 0o644); err != nil {
			t.Fatal(err)
		}
		text := bold.ReplaceAllString(do(t, "groff", "-man", "-K", "utf8", "-T", "utf8", "-ww", page), "")
		texts[filepath.Base(p.path)] = text
		for line := range strings.Lines(text) {
			if len([]rune(line)) > 81 || strings.HasPrefix(line, "troff:") || strings.HasPrefix(line, page) {
				t.Errorf("%s: %s", page, line)
			}
		}
	}
	for page, has := range map[string]string{
		"hasp-run.1": "\n       -w, --wait duration\n           wait at most so long (default: as long as it takes) [HASP_WAIT]\n", "hasp-fence-file.1": "hasp fence file [flags] PATH",
		"hasp-completion-bash.1": "SEE ALSO\n       hasp-completion(1)\n", "hasp-doctor.1": "examine the store",
		"hasp-torture.1":    "\n       --adapter COMMAND\n",
		"hasp-exit-codes.1": "\n       75  busy, or the wait ended (--busy-code, --skip-ok change it); or no\n           holder is known, and ",
		"hasp-config.1":     "\n           store = redis://:secret@db.example.org\n           ttl = 30s\n",
		"hasp-stores.1":     "\n       --shared and --permits\n           not on redlock, s3, kube; ",
		"hasp.1":            "\nSEE ALSO\n       hasp-run(1), ",
	} {
		if !strings.Contains(texts[page], has) {
			t.Errorf("%s has no %q:\n%s", page, has, texts[page])
		}
	}
	if texts["hasp-help.1"] != "" || texts["hasp-man.1"] != "" || len(pages) < 20 {
		t.Errorf("%d pages", len(pages))
	}
}
