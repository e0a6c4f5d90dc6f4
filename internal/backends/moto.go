package backends

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/hasplock/hasp/internal/serverprocess"
)

// motoVersion is that of the server of S3's protocol in Python.
const motoVersion = "5.2.5"

var moto = &tool{name: "moto", make: func() (string, error) {
	return cached("moto-"+motoVersion, func(dir string) error {
		get := exec.Command("python3", "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-input",
			"--root-user-action=ignore", "--target", filepath.Join(dir, "lib"), "moto[server]=="+motoVersion)
		if out, err := get.CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		script := "#!/bin/sh\nPYTHONPATH=\"$(dirname \"$0\")/lib\" exec python3 -m moto.server \"$@\"\n"
		return os.WriteFile(filepath.Join(dir, "server"), []byte(script), 0o755)
	})
}}

// StartMoto starts moto, which has no buckets yet, and returns its address.
func StartMoto(tb testing.TB) string {
	tb.Helper()
	need(tb, moto)
	dir, err := serverprocess.NewDir("moto", nil)
	if err != nil {
		tb.Fatal(err)
	}
	ports, release, err := serverprocess.ReservePorts(1)
	if err != nil {
		tb.Fatal(err)
	}
	addr := serverprocess.Local(ports[0])
	p, err := serverprocess.Start(serverprocess.Command{
		Name: "moto " + addr, Argv: []string{moto.path(0), "-H", "127.0.0.1", "-p", strconv.Itoa(ports[0])}, Dir: dir,
		Ready: func() error {
			answer, err := http.Get("http://" + addr + "/moto-api/")
			if err == nil {
				answer.Body.Close()
			}
			return err
		},
		Stop: syscall.SIGTERM, Release: release,
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := p.Discard(); err != nil {
			tb.Error(err)
		}
	})
	return addr
}
