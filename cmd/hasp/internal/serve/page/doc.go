// Package page is the web page of hasp serve: who holds what, live, with what an operator does about it. It is
// served by the same program, and asks no other host for anything.
//
// The server reads the store for all pages together, while at least one is open (see live), and sends each page what has
// changed, as server-sent events. What a page shows and does is bounded by the rights of the token with which a person
// has signed in.
package page
