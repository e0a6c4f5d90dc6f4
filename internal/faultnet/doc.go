// Package faultnet is a bad network for tests: a TCP proxy on loopback that stands between
// a client and a real server and delays, holds, swallows, cuts and resets on command.
//
//	p, err := faultnet.New(ctx, server.Addr())
//	client := dial(p.Addr())
//	p.Partition()                                      // nothing passes, without an error
//	p.Heal()                                           // everything held arrives, late
//	cut := p.Lose(faultnet.Down, 1, faultnet.Contains("EVALSHA"))
//	<-cut                                              // the server did it, the answer never came
//
// [New] refuses a target beyond this machine; [NewRemote] does not.
//
// Only the connection is disturbed and the server is real, because a faked server has only the
// faults that its author thought of.
//
// # What travels
//
// A connection's opening, its bytes, the end of its stream and its reset travel through
// the same queue, one for each [Direction], and the direction's [Rule] applies to all of
// them. So a client that closes during a partition leaves the server with a half-open
// connection, as a real partition would, and a connection opened during one reaches the
// server when the partition heals.
//
// # What is not faithful
//
// The client's own handshake is with the proxy: during a partition connecting succeeds and then
// nothing answers; with a real partition, connecting would hang; and a server that is down shows as
// a connection that is accepted and reset. [Proxy.Refuse] refuses for real.
//
// The proxy knows no protocol. It counts chunks: what one read from a socket returned, at
// most 32 KB. For a request or an answer on a connection that carries one at a time that
// is one message; pipelined messages may share a chunk.
package faultnet
