package faultnet

import (
	"context"
	"math/rand/v2"
	"time"
)

// Network is the set of one machine's connections to several servers, one proxy each, that fail
// together.
type Network []*Proxy

// NewNetwork starts a proxy to each target, as [New] does one. It ends with Close alone.
func NewNetwork(targets ...string) (Network, error) {
	var n Network
	for _, target := range targets {
		p, err := New(context.Background(), target)
		if err != nil {
			n.Close()
			return nil, err
		}
		n = append(n, p)
	}
	return n, nil
}

// Addrs are where the machine's clients connect, in the order of the targets.
func (n Network) Addrs() (addrs []string) {
	for _, p := range n {
		addrs = append(addrs, p.Addr())
	}
	return addrs
}

// Partition holds everything in all proxies.
func (n Network) Partition() { n.each((*Proxy).Partition) }

// Heal heals all proxies.
func (n Network) Heal() { n.each((*Proxy).Heal) }

// Reset breaks every connection.
func (n Network) Reset() { n.each((*Proxy).Reset) }

// Crash has every connection break and none be made, as servers do that have crashed.
func (n Network) Crash() {
	n.each((*Proxy).Refuse)
	n.Reset()
}

// Slow delays the servers' answers by up to most, each server's by a different time: an answer of
// one may then overtake an earlier answer of another.
func (n Network) Slow(most time.Duration) {
	n.each(func(p *Proxy) { p.Set(Down, Rule{Delay: rand.N(most + 1)}) })
}

// Sent is how many chunks the machine has sent: requests, where each is answered before the next.
func (n Network) Sent() (chunks int64) {
	for _, p := range n {
		chunks += p.Stats().Up.Chunks
	}
	return chunks
}

// Close ends all proxies.
func (n Network) Close() { n.each((*Proxy).Close) }

func (n Network) each(do func(*Proxy)) {
	for _, p := range n {
		do(p)
	}
}
