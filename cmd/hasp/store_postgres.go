//go:build !nopostgres

package main

import _ "github.com/hasplock/hasp/pglock"
