module github.com/hasplock/hasp/redislock/internal/tests

go 1.26.0

replace github.com/hasplock/hasp => ../../../

replace github.com/hasplock/hasp/redislock => ../../

require (
	github.com/hasplock/hasp v0.0.0
	github.com/hasplock/hasp/redislock v0.0.0
	github.com/redis/rueidis v1.0.79
)

require golang.org/x/sys v0.49.0 // indirect
