//go:build !noredis && !fileonly

package stores

import (
	_ "github.com/hasplock/hasp/redislock"
	_ "github.com/hasplock/hasp/redislock/redlock"
)
