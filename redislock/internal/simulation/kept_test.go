package simulation

import "testing"

// kept are schedules that have shown a fault once. want is the violation that they show where an
// exception is named: see docs/backends/redis.md.
var kept = []struct {
	name, text string
	want       string
}{
	{name: "F2: the address leads to a copy, told clients have been there a moment before", text: `
		world queue servers=2 strict
		client 1
		client 2
		try 1 y
		pass 12
		try 1 z
		release 1 y
		try 2 y
		promote 1
		client 4 at=1
		try 4 y
		pass 12
		try 1 z
		try 2 z
		lock 1 x
		try 2 z
		pass 1
		lead all 1
		lock 2 x
		pass 1`},
	{name: "F3: SWAPDB, and back after a TTL", want: twoBelievers, text: `
		world queue
		client 1
		client 2
		client 3
		try 3 y
		pass 12
		try 3 z
		release 3 y
		release 3 z
		swap 0
		pass 12
		lock 2 x
		pass 12
		swap 0
		lock 3 x
		pass 1`},
	{name: "F4: a failover is undone, with wait", text: `
		world queue servers=3 wait=1
		client 1
		client 2
		client 3 ttl=20
		try 1 y
		promote 1
		follow 2 1
		lead 1 1
		lead 2 1
		try 1 a
		pass 25
		lock 1 x
		try 2 b
		pass 2
		try 3 c
		pass 2
		follow 2 0
		lead 2 0
		lock 2 x
		pass 2`},
	{name: "F5: what is confirmed is the mark of another reign", text: `
		world queue servers=3 wait=1
		client 1
		client 2
		flush 0
		fate 2 passes waits
		try 2 y
		lock 1 x
		pass 12
		promote 1
		lead 2 1
		try 2 z
		deliver 2 0 1
		pass 12
		follow 2 1
		lock 2 x
		pass 1`},
	{name: "F8: a master with a replica starts from its file, and closes once", text: `
		world queue servers=2
		client 1
		try 1 y
		release 1 y
		pass 12
		restart 0 back 0
		pass 30
		try 1 z
		pass 12
		must 1 z
		client 2
		must 2 v`},
	{name: "F11: less than half of all replicas confirm, a new one counted", want: twoBelievers, text: f11("wait=1")},
	{name: "F11, and half of them do", text: f11("wait=2")},
	{name: "row 5: a confirmed request arrives again, and writes", text: `
		world queue servers=2 wait=1
		client 1
		client 2
		lock 1 e
		fate 1 again
		publish 1 e
		deliver 1 0
		pass 1
		fate 2 again
		adopt 2 1 e
		deliver 2 0
		pass 1`},
	{name: "F6: a replica was promoted longer ago than it tells", text: `
		world queue servers=2 ttl=7200
		client 1
		client 2
		try 2 y
		pass 1
		lag 1
		lock 1 x
		stop 0
		promote 1
		pass 3700
		lead all 1
		lock 2 x
		pass 1`},
	{name: "F6, and the first to ask is new", text: `
		world queue servers=2 ttl=7200
		client 1
		client 2
		try 2 y
		pass 1
		lag 1
		lock 1 x
		stop 0
		promote 1
		pass 3700
		lead all 1
		client 3
		lock 3 x
		pass 1`},
	{name: "F7: a dump of the same period", want: twoBelievers, text: `
		world queue
		client 1
		client 2
		try 2 y
		pass 1
		lock 1 x
		restore 0 1
		lock 2 x
		pass 0.1`},
	{name: "F9: k clients with k pasts, and one loss closes once", text: `
		world queue
		client 1
		client 2
		client 3
		try 1 a
		flush 0
		try 2 a
		pass 12
		flush 0
		try 3 a
		pass 12
		flush 0
		client 4
		try 4 a
		pass 12
		must 4 b
		must 1 b1
		pass 12
		must 2 b2
		pass 12
		must 3 b3`},
	{name: "F10: SWAPDB was counted once, and the count was reset", text: `
		world queue
		client 1
		swap 0
		try 1 a
		pass 12
		must 1 a1
		reset 0
		client 2
		must 2 b`},
	{name: "row 3: an older file, and a request of a moment ago", text: `
		world queue
		client 1
		client 2
		try 2 y
		lock 1 x
		restart 0 back 1
		lock 2 x
		pass 1`},
	{name: "row 3: a request waits while another server takes over", text: `
		world queue servers=2
		client 1
		client 2
		client 3
		try 2 y
		lag 1
		fate 2 waits
		lock 2 x
		lock 1 x
		stop 0
		promote 1
		lead all 1
		deliver 2 0
		pass 1`},
	{name: "row 4: two readers after a quarantine", text: `
		world queue
		client 1
		client 2
		client 3
		restart 0 empty
		read 1 r
		pass 10.0005
		read 3 r
		pass 1`},
	{name: "row 8: a slot at its first use, after RESETSTAT", text: `
		world queue servers=3 cluster=3
		client 1
		try 1 x
		try 1 y
		try 1 z
		try 1 t
		pass 12
		must 1 z1
		reset 0
		reset 1
		reset 2
		pass 1
		try 1 a
		try 1 b
		try 1 c
		pass 12
		must 1 d
		must 1 e
		must 1 f`},
	{name: "row 8: a slot moves once, and closes once", text: `
		world queue servers=3 cluster=3
		client 1
		try 1 x
		pass 12
		release 1 x
		must 1 x
		release 1 x
		move x 0
		move x 1
		try 1 x
		pass 12
		release 1 x
		must 1 x
		release 1 x
		pass 5
		must 1 x`},
	{name: "a slot moves, and its keys were lost before", text: `
		world setnx servers=4 cluster=2
		client 1
		client 3
		lag 2
		move x 0
		lock 3 x
		take 2
		move x 1
		lock 1 x`},
	{name: "a client that was refused by another database knows of it, redisson", text: `
		world redisson strict
		client 1
		client 2
		client 3
		try 1 t
		pass 12
		try 1 t
		try 2 t
		try 3 t
		pass 12
		try 1 t
		try 2 t
		try 3 t
		swap 0
		pass 21
		lock 3 x
		lock 2 x
		pass 12
		try 1 t
		try 2 t
		try 3 t
		pass 12
		try 1 t
		try 2 t
		try 3 t
		swap 0`},
	{name: "an answer that is older than a renewal, redisson", text: `
		world redisson
		client 2
		client 3
		lock 2 y
		fate 2 answersLate
		lock 2 x
		flush 0
		pass 4
		lock 3 x
		pass 12
		deliver 2 0
		pass 1`},
	{name: "an answer that is older than a renewal, setnx", text: `
		world setnx
		client 2
		client 3
		lock 2 y
		fate 2 answersLate
		lock 2 x
		flush 0
		pass 4
		lock 3 x
		pass 12
		deliver 2 0
		pass 1`},
	{name: "an answer that is older than a renewal, queue", text: `
		world queue
		client 2
		client 3
		lock 2 y
		fate 2 answersLate
		lock 2 x
		flush 0
		pass 4
		lock 3 x
		pass 12
		deliver 2 0
		pass 1`},
	{name: "two masters, of which one has the replica", text: `
		world queue servers=3 wait=1
		client 1
		client 2
		lock 1 x
		promote 1
		lead 2 1
		try 2 z
		pass 12
		follow 2 1
		lock 2 x
		pass 1`},
	{name: "a release arrives when another holds", text: `
		world setnx
		client 1
		client 2
		client 3
		lock 1 x
		fate 1 waits
		release 1 x
		pass 11
		lock 2 x
		deliver 1 0
		lock 3 x
		pass 1`},
	{name: "a waiter whose entry is gone is refused", text: `
		world queue
		client 1
		try 1 x
		lock 1 x
		restart 0 empty
		full 0
		pass 12`},
	{name: "at the end of all faults the old master is the master again, an exception", text: `
		world queue servers=3
		client 2
		client 3
		lock 3 y
		promote 2
		lead 3 2
		fate 2 waits
		pass 12
		lock 2 y`},
	{name: "a promotion that INFO has forgotten: no mark", text: `
		world queue servers=2 ttl=7200
		client 1
		client 3
		try 3 x
		restart 0 back 5
		cut 3
		failover 1
		pass 3700
		lock 1 x`},
	{name: "a promotion that INFO has forgotten: the mark of an earlier reign of the process", text: `
		world queue servers=2 ttl=7200
		client 1
		client 2
		client 3
		lock 1 y
		release 1 y
		switchover 1
		try 1 y
		pass 7300
		try 3 x
		restart 1 back 3
		cut 3
		failover 0
		pass 3700
		lock 2 x`},
}

// f11 has a new replica confirm at a promoted master, while an old one does at the master that was
// replaced.
func f11(wait string) string {
	return "world queue servers=4 strict " + wait + `
		stop 3
		client 1
		client 2
		pass 1
		promote 1
		lead 2 1
		start 3 empty
		follow 3 1
		try 2 z
		pass 8
		lock 1 x
		pass 4
		lock 2 x
		pass 10`
}

func TestKept(t *testing.T) {
	for _, k := range kept {
		t.Run(k.name, func(t *testing.T) {
			wrong := scheduleOf(k.text).run(t, newInterpreter(), nil, nil)
			switch {
			case k.want == "" && len(wrong) > 0:
				t.Errorf("%s: %s", wrong[0].kind, wrong[0].text)
			case k.want != "" && (len(wrong) == 0 || wrong[0].kind != k.want):
				t.Errorf("got %v, want %s: is the exception still one?", wrong, k.want)
			}
		})
	}
}
