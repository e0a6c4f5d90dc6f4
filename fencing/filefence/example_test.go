//go:build linux || darwin || freebsd

package filefence_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/fencing/filefence"
	"github.com/hasplock/hasp/memlock"
)

// Two holders, one after the other; the first one's late write is refused.
func Example() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path, ctx := filepath.Join(dir, "report.txt"), context.Background()
	locks, err := hasp.New(memlock.New().Backend())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locks.Close()
	take := func() *filefence.Writer {
		lease, err := locks.Mutex("nightly").Lock(ctx)
		if err != nil {
			fmt.Println(err)
			return nil
		}
		defer lease.Unlock()
		w, err := filefence.With(ctx, path, lease, nil)
		if err != nil {
			fmt.Println(err)
		}
		return w
	}
	first, second := take(), take()
	fmt.Println(second.Replace(ctx, strings.NewReader("the newer")))
	err = first.Replace(ctx, strings.NewReader("the older, late"))
	fmt.Println(errors.Is(err, fencing.ErrStale))
	content, err := os.ReadFile(path)
	fmt.Println(string(content), err)
	// Output:
	// <nil>
	// true
	// the newer <nil>
}
