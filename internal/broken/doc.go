// Package broken has every driver that is broken on purpose: the controls of tests, which show
// that these can fail. A check that cannot fail is a defect.
//
// There are two kinds. A [Control] is a store in memory whose driver has one flaw, which may be
// in anything that a driver does; package drivertest's own tests run the conformance suite on
// each. The functions that take a backend ([Liar], [Deaf] and so on) put one mistake between any
// driver and the core; the drivers' tests of faults do to them what they do to the whole driver.
//
// Other packages have the flaws that are not in a driver: in a server's procedures (mysqllock and
// pglock: order_test.go), in requests under way (etcdlock: late_test.go), in hand-written locks
// (package naivelock), in contenders from other processes (dev/interop). The far end of
// drivertest's remote store that promises too much belongs to that store.
package broken
