// Package top is the screen of `hasp top`: the queues of a store, live, and one of them opened.
//
// Watch looks at the store, one look after the other; Run shows the looks in a terminal until the user
// leaves it.
package top
