//go:build unix && !linux

package cli

import "github.com/rogpeppe/go-internal/testscript"

func cmdStartPTY(ts *testscript.TestScript, _ bool, _ []string) {
	ts.Fatalf("startpty is written for Linux; skip the script elsewhere")
}

func endThread() { select {} }
