//go:build !nohttp

package main

import _ "github.com/hasplock/hasp/httplock"
