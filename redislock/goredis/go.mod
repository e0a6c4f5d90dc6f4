module github.com/hasplock/hasp/redislock/goredis

go 1.26.0

replace (
	github.com/hasplock/hasp => ../../
	github.com/hasplock/hasp/redislock => ../../redislock
)

require (
	github.com/hasplock/hasp v0.0.0
	github.com/hasplock/hasp/redislock v0.0.0
	github.com/redis/go-redis/v9 v9.23.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/redis/rueidis v1.0.79 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
)
