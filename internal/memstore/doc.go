// Package memstore is the store in memory: the reference for what a driver must do. Package memlock
// makes a lock of it, and package hasptest makes faults on it, for tests of programs that lock. It
// follows testing/synctest's fake time.
//
// It promises everything in driver.Traits. Nothing survives the process. Its sessions
// expire like those of a server, if they are not renewed.
package memstore
