//go:build darwin || freebsd

package filelock

import "errors"

func bind(string, string) error { return errors.ErrUnsupported }
