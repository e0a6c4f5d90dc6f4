module github.com/hasplock/hasp/redislock

go 1.26.0

replace github.com/hasplock/hasp => ../

require (
	github.com/hasplock/hasp v0.0.0
	github.com/redis/rueidis v1.0.79
)

require (
	golang.org/x/net v0.61.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
)
