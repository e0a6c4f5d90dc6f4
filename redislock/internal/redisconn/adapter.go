package redisconn

import "github.com/hasplock/hasp/driver"

// NewBackend makes a backend of package redislock on a connection; o is a *redislock.Options.
// redislock sets it for the adapters to other client libraries, which import redislock. An
// exported function of redislock would show its users a type that they cannot name.
var NewBackend func(conn Conn, o any) (driver.Backend, error)
