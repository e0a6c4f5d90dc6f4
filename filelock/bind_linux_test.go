package filelock

import "golang.org/x/sys/unix"

func bind(from, to string) error { return unix.Mount(from, to, "", unix.MS_BIND, "") }
