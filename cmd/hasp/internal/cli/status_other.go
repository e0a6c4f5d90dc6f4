//go:build !unix

package cli

import (
	"errors"
	"io"
)

func openStatus(int) (io.WriteCloser, error) {
	return nil, errors.New("not available on this system")
}
