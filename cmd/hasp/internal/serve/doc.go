// Package serve is the server of `hasp serve`: the contract of package driver over HTTP, for
// programs in other languages and for package httplock. docs/SERVE.md describes what it promises.
//
// A client's session is one driver.Session of the store. The server never renews it by itself: a
// keep-alive is passed on to the store while its client waits, and the duration that the store has
// granted is the answer. The client counts that from before its request was sent, which is before the
// server's request was: its trust ends before the store's, also if the server stops or dies.
package serve
