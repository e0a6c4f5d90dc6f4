package serve

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// ReturnMemory gives memory of the process back that requests have left behind, whenever the server is quiet, until ctx ends. Go collects
// garbage when the heap has doubled: when ten thousand requests have begun to wait, up to half of the memory is garbage from their beginning,
// for as long as they wait.
//
// Rejected: a smaller GOGC, by which a busy server collects more often. A busy one is left alone here, and one with little garbage.
func ReturnMemory(ctx context.Context) {
	const (
		littleBytes = 8 << 20
		littlePart  = 8  // of what is in use
		rests       = 50 // times as long as it has taken
	)
	m := []metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for before, next := uint64(0), time.Now(); ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		metrics.Read(m)
		allocated, live, objects, free := m[0].Value.Uint64(), m[1].Value.Uint64(), m[2].Value.Uint64(), m[3].Value.Uint64()
		little := max(littleBytes, live/littlePart)
		busy := allocated-before > little
		before = allocated
		if began := time.Now(); !busy && objects+free > live+little && began.After(next) {
			runtime.GC() // each collection halves the stacks that are too large
			debug.FreeOSMemory()
			next = time.Now().Add(rests * time.Since(began))
		}
	}
}
