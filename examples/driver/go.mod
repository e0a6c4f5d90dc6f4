module github.com/hasplock/hasp/examples/driver

go 1.26.0

replace (
	github.com/hasplock/hasp => ../../
	github.com/hasplock/hasp/drivertest/programs => ../../drivertest/programs
)

require (
	github.com/hasplock/hasp v0.0.0
	github.com/hasplock/hasp/drivertest/programs v0.0.0-00010101000000-000000000000
	modernc.org/sqlite v1.60.1
)

require (
	github.com/dustin/go-humanize v1.1.0 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/mattn/go-isatty v0.0.24 // indirect
	github.com/ncruces/go-strftime v1.1.0 // indirect
	github.com/remyoudompheng/bigfft v0.0.0-20230129092748-24d4a6f8daec // indirect
	golang.org/x/sys v0.49.0 // indirect
	modernc.org/libc v1.79.0 // indirect
	modernc.org/mathutil v1.7.1 // indirect
	modernc.org/memory v1.12.1 // indirect
	pgregory.net/rapid v1.3.0 // indirect
)
