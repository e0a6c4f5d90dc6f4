module github.com/hasplock/hasp/mysqllock

go 1.26.0

replace github.com/hasplock/hasp => ../

require (
	github.com/go-sql-driver/mysql v1.10.1
	github.com/hasplock/hasp v0.0.0
)

require filippo.io/edwards25519 v1.2.0 // indirect
