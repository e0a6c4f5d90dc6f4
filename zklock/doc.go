// Package zklock keeps hasp's locks in ZooKeeper 3.5.3 or newer.
//
//	import _ "github.com/hasplock/hasp/zklock"
//	c, err := hasp.Open(ctx, "zookeeper://10.0.0.1,10.0.0.2,10.0.0.3/locks")
//
// or with settings of your own:
//
//	b, err := zklock.New(servers, &zklock.Options{Root: "/locks"})
//	c, err := hasp.New(b)
//
// # How it works
//
// An entry is an ephemeral sequential node under the lock's node, in the session of its
// client. Names of nodes say everything that decides: one list of the children tells the
// order, units and capacity. A waiter watches the entries that block it and no others,
// and is granted by the event that they have gone. The czxid of the node is the fencing
// token. Create and list are pipelined: a free lock costs one round trip, its
// release another.
//
// The names are Apache Curator's (InterProcessMutex, InterProcessReadWriteLock), kazoo's
// on request, so that services in other languages share these locks at the same path.
//
// # Limits
//
// A session is no proof against a pause: a program that writes to a resource under a lock must
// look at Held right before, or have the token checked by the resource.
//
// Servers bound the session timeout (from 2 to 20 ticks, which are 4 to 40 s unless
// configured), and grant another than was asked without an error. A renewal is worth less
// than the timeout, three quarters of it, because a follower that has lost its leader may still
// answer: see renew.go.
//
// An ensemble that is rebuilt from nothing starts its tokens again.
//
// docs/backends/zookeeper.md says more.
package zklock
