module github.com/hasplock/hasp/zklock

go 1.26.0

replace github.com/hasplock/hasp => ../

require (
	github.com/go-zookeeper/zk v1.0.4
	github.com/hasplock/hasp v0.0.0
)
