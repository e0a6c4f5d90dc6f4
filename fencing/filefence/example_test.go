//go:build linux || darwin || freebsd

package filefence_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/fencing/filefence"
)

func Example() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path, ctx := filepath.Join(dir, "report.txt"), context.Background()
	f, err := filefence.Open(path, "nightly")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(f.Replace(ctx, 88, strings.NewReader("the newer")))
	err = f.Replace(ctx, 87, strings.NewReader("the older, late"))
	fmt.Println(errors.Is(err, fencing.ErrStale))
	content, err := os.ReadFile(path)
	fmt.Println(string(content), err)
	// Output:
	// <nil>
	// true
	// the newer <nil>
}
