//go:build !noetcd

package main

import _ "github.com/hasplock/hasp/etcdlock"
