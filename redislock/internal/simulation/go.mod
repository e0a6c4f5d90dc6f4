module github.com/hasplock/hasp/redislock/internal/simulation

go 1.26.0

replace github.com/hasplock/hasp => ../../../

replace github.com/hasplock/hasp/redislock => ../../

require (
	github.com/hasplock/hasp v0.0.0
	github.com/hasplock/hasp/redislock v0.0.0
	github.com/yuin/gopher-lua v1.1.2
)

require (
	github.com/redis/rueidis v1.0.79 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
)
