//go:build !noredis

package main

import (
	_ "github.com/hasplock/hasp/redislock"
	_ "github.com/hasplock/hasp/redislock/redlock"
)
