// Package broken has every driver that is broken on purpose: the controls of tests, which show
// that these can fail. A check that cannot fail is a defect.
//
// There are two kinds. A [Control] is a store in memory whose driver has one flaw, which may be
// in anything that a driver does; package drivertest's own tests run the conformance suite on
// each. The functions that take a backend ([Liar], [Deaf] and so on) put one mistake between any
// driver and the core; the drivers' tests of faults do to them what they do to the whole driver.
//
// Not here is what breaks something else than a driver: a server's procedures (mysqllock and
// pglock: order_test.go), requests on their way (etcdlock: late_test.go), locks that somebody
// has written by hand (package naivelock), what contends from other processes (module interop).
// Nor is the far end of drivertest's remote store that promises too much: it is that store's.
package broken
