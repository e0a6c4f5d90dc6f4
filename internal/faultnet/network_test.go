package faultnet

import (
	"runtime"
	"slices"
	"testing"
	"time"
)

// There is a proxy for each of very many clients, as random programs want it.
func TestManyProxies(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("elsewhere loopback is one address, which has 767 ports for us")
	}
	n, err := NewNetwork(slices.Repeat([]string{"127.0.0.1:1"}, 1000)...)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	addrs := n.Addrs()
	slices.Sort(addrs)
	if left := len(slices.Compact(addrs)); left != 1000 {
		t.Errorf("%d addresses for 1000 proxies", left)
	}
}

// What a network does, all its proxies do.
func TestNetworkFailsAsOne(t *testing.T) {
	n, err := NewNetwork("127.0.0.1:1", "127.0.0.1:2")
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	rules := func() (rules [][2]Rule) {
		for _, p := range n {
			p.mu.Lock()
			rules = append(rules, p.rules)
			p.mu.Unlock()
		}
		return rules
	}
	n.Partition()
	for _, r := range rules() {
		if r[Up].Mode != Hold || r[Down].Mode != Hold {
			t.Errorf("in a partition: %+v", r)
		}
	}
	n.Slow(time.Hour)
	for _, r := range rules() {
		if r[Down].Mode != Pass || r[Down].Delay > time.Hour {
			t.Errorf("slow: %+v", r)
		}
	}
	n.Heal()
	for _, r := range rules() {
		if r != [2]Rule{} {
			t.Errorf("healed: %+v", r)
		}
	}
}
