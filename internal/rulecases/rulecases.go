// Package rulecases is the one table of cases of the admission rule. The unit test of
// driver.Decide runs it, and drivertest runs it through real entries of every driver: a
// line of Go, a loop of Lua and a window sum of SQL must agree.
package rulecases

import "github.com/hasplock/hasp/driver"

const whole = driver.Whole

// Case is a queue and who of it holds.
type Case struct {
	Name     string
	Capacity int64
	Units    []int64 // of the entries, oldest first

	// Holds tells for each entry how many directly ahead of it are its blockers; 0 if it
	// holds.
	Blockers []int
}

// Cases are all there are.
func Cases() []Case {
	return []Case{
		{"a mutex", whole, []int64{whole, whole, whole}, []int{0, 1, 1}},
		{"readers", whole, []int64{1, 1, 1}, []int{0, 0, 0}},
		{"readers behind a writer", whole, []int64{whole, 1, 1, 1}, []int{0, 1, 2, 3}},
		{"a writer behind readers", whole, []int64{1, 1, whole}, []int{0, 0, 1}},
		{"a reader behind a waiting writer", whole, []int64{1, whole, 1, whole, 1}, []int{0, 1, 1, 1, 1}},
		{"one permit", 1, []int64{1, 1, 1}, []int{0, 1, 1}},
		{"three permits", 3, []int64{1, 1, 1, 1, 1}, []int{0, 0, 0, 3, 3}},
		{"exactly full", 5, []int64{2, 3, 1}, []int{0, 0, 2}},
		{"a small request waits behind a large one", 5, []int64{3, 3, 1, 1}, []int{0, 1, 2, 3}},
		{"all permits at once", 4, []int64{4, 4, 1}, []int{0, 1, 1}},
		{"all permits behind one", 4, []int64{1, 4, 1}, []int{0, 1, 1}},
		{"weights", 10, []int64{4, 3, 3, 2, 9, 1}, []int{0, 0, 0, 3, 1, 2}},
		{"the largest semaphore", whole - 1, []int64{whole - 2, 1, 1}, []int{0, 0, 2}},
	}
}
