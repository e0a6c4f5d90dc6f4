//go:build unix

// Package fencetest tests every fence by the same rule, with the same tests: Rule says what a token
// may do, Paused stops a real holder of a real lock for longer than its TTL, Load makes many
// holders lose the lock at random while they count.
//
// Paused and Load run a second time without the fence and then require damaged data: a test that
// cannot fail proves nothing.
package fencetest

import "context"

// Resource is a fenced resource as one process sees it, with a cell of data for each lock
// name. Tests of a fence implement it on the real thing.
type Resource interface {
	// Advance is the With of the fence under test. Write writes by what that has returned at the
	// first call with this token (see Writers).
	Advance(ctx context.Context, name string, token uint64) error
	Write(ctx context.Context, name string, token uint64, value string) error

	// Overwrite writes like a program that has a lock and no fence.
	Overwrite(ctx context.Context, name, value string) error

	// Read returns the cell's value, "" if nothing has ever been written.
	Read(ctx context.Context, name string) (string, error)
}

// Opener opens the resource that target names: an address, a path. Two Openers of one target
// reach the same cells, also from two processes; different targets have different cells.
type Opener func(ctx context.Context, target string) (Resource, error)
