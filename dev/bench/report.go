package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// report is a whole run.
type report struct {
	Machine string  `json:"machine"`
	When    string  `json:"when"`
	Reps    int     `json:"repetitions"`
	Tables  []table `json:"tables"`
}

// machine describes where the run was made, without its name.
func machine() string {
	cpu := runtime.GOARCH
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
				cpu = strings.TrimSpace(v)
				break
			}
		}
	}
	kernel := ""
	if out, err := exec.Command("uname", "-sr").Output(); err == nil {
		kernel = strings.TrimSpace(string(out))
	}
	return fmt.Sprintf("%d cores (%s), %s, %s; servers and clients on this one machine, over loopback", runtime.NumCPU(), cpu, kernel, runtime.Version())
}

// earlier reads the figures of an earlier run, if there is to be one.
func earlier(file string) (*report, error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r := &report{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return r, nil
}

// replace puts tables that were measured again in the place of those of the run.
func (r *report) replace(tables []table) {
	for _, t := range tables {
		t.Again = today()
		at := len(r.Tables)
		for i, old := range r.Tables {
			if old.Store == t.Store {
				at = i + 1 // a store's tables stand together
			}
		}
		if i := slices.IndexFunc(r.Tables, func(old table) bool { return old.Store == t.Store && old.Scenario == t.Scenario }); i >= 0 {
			r.Tables[i] = t
		} else {
			r.Tables = slices.Insert(r.Tables, at, t)
		}
	}
}

// write writes the users' page with its pictures, and the developers' results with all figures,
// into the repository at dir.
func (r *report) write(dir string) error {
	files := map[string][]byte{}
	var page, results bytes.Buffer
	for _, c := range charts {
		var b bytes.Buffer
		c.svg(&b, r)
		files["docs/img/"+c.file] = b.Bytes()
	}
	r.page(&page)
	r.results(&results)
	figures, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	files["docs/PERFORMANCE.md"], files["dev/bench/RESULTS.md"], files["dev/bench/results.json"] = page.Bytes(), results.Bytes(), figures
	for name, text := range files {
		name = filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func today() string { return time.Now().UTC().Format("2006-01-02") }
