// Package httpapi has what a client and the server of `hasp serve` say to each other: the messages
// and the errors. docs/SERVE.md describes them for people, and the server's OpenAPI document for
// programs; a test of the server compares that with the types here.
//
// The API is the contract of package driver over HTTP: a session there is a driver.Session here,
// and a lock is a driver.Ticket. So trust composes. A client counts from before its request to keep
// a session alive was sent, which is before the server sent its own to the store.
package httpapi
