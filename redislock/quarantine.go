package redislock

import (
	"context"
	"time"

	"github.com/hasplock/hasp/redislock/internal/quarantine"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
	"github.com/hasplock/hasp/redislock/internal/setnx"
)

// markPrefix begins the key of the mark. The strategies that share their locks with other libraries
// have no prefix for all keys: their marks are with their other keys.
func (o *Options) markPrefix() string {
	if o.Strategy == StrategyQueue {
		return o.Prefix
	}
	return setnx.CompanionPrefix
}

func (o *Options) mark(conn redisconn.Conn, key string) string {
	return quarantine.Key(conn, o.markPrefix(), key)
}

// withMark adds the mark to the KEYS of a script that may grant, unless there is no quarantine.
func (o *Options) withMark(conn redisconn.Conn, keys ...string) []string {
	if o.NoQuarantine {
		return keys
	}
	return append(keys[:len(keys):len(keys)], o.mark(conn, keys[0]))
}

func (o *Options) quarantine(ctx context.Context, conn redisconn.Conn, key string) (time.Duration, error) {
	if o.NoQuarantine {
		return 0, nil
	}
	return quarantine.Left(ctx, conn, o.mark(conn, key))
}
