package redislock_test

import (
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest/programs"
	"github.com/hasplock/hasp/internal/backends"
)

func TestPrograms(t *testing.T) {
	url := backends.SharedRedis(t).URL()
	programs.Run(t, programs.Config{
		TTL: time.Second,
		Stores: func() []programs.Store {
			return []programs.Store{
				{Open: func(t testing.TB) driver.Backend { return open(t, url) }},
				{Open: func(t testing.TB) driver.Backend { return open(t, url+"?prefix=other:") }},
			}
		},
	})
}
