//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/hasplock/hasp"
	"github.com/rogpeppe/go-internal/testscript"
)

// This test binary is the hasp-torture that the tests run, as a process, and what its scripts need
// beside it.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"hasp-torture": main, "code": code, "names": names})
}

// The scripts run real processes on a real file store.
func TestScripts(t *testing.T) {
	// What is ignored is inherited, under nohup say, and what is caught is not: a script sends INT.
	if signal.Ignored(syscall.SIGINT) {
		signal.Notify(make(chan os.Signal, 1), syscall.SIGINT)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			e.Setenv("HASP_STORE", "file://"+filepath.Join(e.WorkDir, "locks"))
			e.Setenv("GORACE", "atexit_sleep_ms=0") // a second per process, which is not what we measure
			return nil
		},
	})
}

// code N CMD ARGS runs CMD and demands the exit code N: testscript knows success and failure alone.
func code() {
	c := exec.Command(os.Args[2], os.Args[3:]...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := c.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		fail(err)
	}
	if got := strconv.Itoa(c.ProcessState.ExitCode()); got != os.Args[1] {
		fail(fmt.Errorf("exit code %s, want %s", got, os.Args[1]))
	}
}

// names prints the names in the store that HASP_STORE names.
func names() {
	ctx := context.Background()
	c, err := hasp.Open(ctx, os.Getenv("HASP_STORE"))
	if err != nil {
		fail(err)
	}
	for name, err := range c.Names(ctx, "") {
		if err != nil {
			fail(err)
		}
		fmt.Println(name)
	}
	if err := c.Close(); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(99)
}
