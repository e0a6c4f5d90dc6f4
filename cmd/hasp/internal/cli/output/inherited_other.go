//go:build !unix

package output

import (
	"errors"
	"io"
)

// Inherited refuses.
func Inherited(int) (io.WriteCloser, error) {
	return nil, errors.New("not available on this system")
}
