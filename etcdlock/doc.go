// Package etcdlock keeps hasp's locks in etcd 3.4 or newer.
//
//	import _ "github.com/hasplock/hasp/etcdlock"
//	c, err := hasp.Open(ctx, "etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379")
//
// or on a client of yours:
//
//	b, err := etcdlock.New(client, nil)
//	c, err := hasp.New(b)
//
// # How it works
//
// An entry is a key under the lock's name with the lease of its client's session. The
// queue is in the order of the create revisions, and the create revision is the fencing
// token. One transaction enters the queue and says who is in the way; a waiter watches
// exactly those, and one transaction leaves. One lease, one watch stream and one renewal
// every third of the TTL serve all locks of a client.
//
// `etcdctl lock` and etcd's own Go package use the same layout: for a name of a-z, 0-9,
// '-', '_' and '.', `etcdctl lock hasp/NAME` excludes hasp's mutex NAME and is excluded
// by it. Other bytes of a name are written as "%" and two hex digits.
//
// # What will hurt you
//
// A lease is no proof against a pause: a program that writes to a resource under a lock must
// look at Held right before, or have the token checked: by the resource, or in etcd itself
// by [Backend.StillHeld]. TTLs are whole seconds from 2 s on. Do not use the namespace
// package's wrappers with a client for hasp: they are bypassed; set Options.Prefix.
//
// docs/backends/etcd.md says more.
package etcdlock
