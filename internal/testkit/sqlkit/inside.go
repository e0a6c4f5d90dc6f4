package sqlkit

import (
	"os/exec"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
)

// Inside runs tests of a driver's own package at a server, and requires that each passes. They look
// inside a store or a connection, and use no internals of another module, so that no user's go mod
// tidy needs those. The race detector watches them if it watches this test.
func Inside(t *testing.T, module, storeURL, run, passed string) {
	t.Helper()
	args := []string{"test", "-count=1", "-vet=off", "-v", "-run=" + run}
	info, _ := debug.ReadBuildInfo()
	if info != nil && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(args, "github.com/hasplock/hasp/"+module)...)
	cmd.Env = append(cmd.Environ(), "EXAMPLE_STORE="+storeURL)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), passed) || strings.Contains(string(out), "--- SKIP") {
		t.Errorf("%s: %v\n%s", cmd, err, out)
	}
}
