module github.com/hasplock/hasp/drivertest/programs

go 1.26.0

replace github.com/hasplock/hasp => ../../

require (
	github.com/hasplock/hasp v0.0.0
	pgregory.net/rapid v1.3.0
)
