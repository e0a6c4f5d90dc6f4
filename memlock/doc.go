// Package memlock is hasp's in-memory store: the reference for what a driver must do,
// the store of the examples, and a real lock between the goroutines and clients of one
// process. It follows testing/synctest's fake time.
//
//	c, err := hasp.New(memlock.New().Backend())
//	c, err := hasp.Open(ctx, "mem://orders") // all Opens of this URL share one store
//
// It promises everything in driver.Traits. Nothing survives the process. Its sessions
// expire like those of a server, if they are not renewed.
package memlock
