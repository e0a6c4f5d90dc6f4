package main

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/hasplock/hasp/internal/backends"

	_ "github.com/hasplock/hasp/httplock"
)

// startServe starts hasp serve of this repository in front of a store, and returns the URL for its clients.
func startServe(p *backends.Program, store string) string {
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/hasplock/hasp").Output()
	if err != nil {
		p.Fatal("go list: ", err)
	}
	dir, err := os.MkdirTemp("", "hasp-bench-")
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { os.RemoveAll(dir) })
	file := filepath.Join(dir, "hasp")
	build := exec.Command("go", "build", "-o", file, ".")
	build.Dir = filepath.Join(strings.TrimSpace(string(root)), "cmd", "hasp")
	if out, err := build.CombinedOutput(); err != nil {
		p.Fatal("go build of cmd/hasp: ", err, "\n", string(out))
	}
	// The shell ends it when this process ends, however it does: its standard input is then closed.
	c := exec.Command("sh", "-c", `"$0" serve --store "$1" --listen 127.0.0.1:0 --log off & read end; kill -9 $!`, file, store)
	in, err := c.StdinPipe()
	if err != nil {
		p.Fatal(err)
	}
	says, err := c.StderrPipe()
	if err != nil {
		p.Fatal(err)
	}
	if err := c.Start(); err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() {
		_ = in.Close()
		_ = c.Wait() // it was killed
	})
	line, err := bufio.NewReader(says).ReadString('\n')
	_, addr, ok := strings.Cut(strings.TrimSpace(line), " at http://")
	if !ok {
		p.Fatal("hasp serve says ", line, err)
	}
	return "hasp+http://" + addr
}
