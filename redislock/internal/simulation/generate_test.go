package simulation

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// family is a kind of schedules: worlds of which the same is promised.
type family struct {
	name   string
	worlds []string
	steps  []weighted
	length int
	prefix string // what happens first
}

// weighted is a line, or several separated by ";", and how often it is drawn. In it C is a client,
// N a name, S a server, R another server than S, K a small number, P a time to pass, F a fate.
type weighted struct {
	weight int
	text   string
}

// work has the steps of clients, for every family.
var work = []weighted{
	{6, "lock C N"}, {3, "try C N"}, {6, "release C N"}, {14, "pass P"}, {2, "crash C"}, {3, "client C"}, {1, "close C"},
	{2, "adopt C C N"},
}

// network has the fates of their requests.
var network = []weighted{
	{4, "fate C F"}, {2, "fate C F F"}, {5, "deliver C K"}, {2, "cut C"}, {2, "heal C"}, {1, "deaf C"},
}

// sharing is for names of several holders.
var sharing = []weighted{{5, "read C r"}, {2, "lock C r"}, {5, "lock C s"}, {4, "release C r"}, {4, "release C s"},
	{3, "downgrade C r"}, {3, "lock C e"}, {4, "publish C e"}, {2, "release C e"}, {2, "adopt C C e"}, {2, "adopt C C r"}, {1, "adopt C C s"},
}

var families = []family{
	{
		name: "one server", length: 18,
		worlds: []string{"world queue", "world queue", "world setnx", "world redisson"},
		steps: join(work, network, []weighted{
			{3, "restart 0 back K"}, {2, "restart 0 empty"}, {2, "restart 0 all"}, {1, "flush 0"}, {1, "evict 0"}, {1, "reset 0"}, {1, "full 0"}, {1, "room 0"},
			{1, "stop 0"}, {1, "start 0 all"},
		}),
	},
	{
		name: "several holders", length: 20,
		worlds: []string{"world queue"},
		steps: join(work, network, sharing, []weighted{
			{3, "restart 0 back K"}, {2, "restart 0 empty"}, {2, "restart 0 all"}, {1, "flush 0"},
		}),
	},
	{
		name: "failover", length: 18,
		worlds: []string{"world queue servers=2", "world queue servers=3", "world setnx servers=2", "world redisson servers=2"},
		steps: join(work, network, []weighted{
			{6, "failover S"}, {3, "switchover S"}, {3, "lag S;switchover S"}, {5, "rejoin S K"}, {3, "lag S"}, {2, "catch S"}, {2, "restart S back K"}, {1, "stop S"},
		}),
	},
	{
		name: "two masters", length: 20,
		worlds: []string{"world queue servers=3 wait=1", "world queue servers=3 wait=1", "world queue servers=5 wait=2"},
		steps: join(work, network, []weighted{
			{5, "promote S"}, {5, "follow S R"}, {5, "lead C S"}, {2, "lead all S"}, {2, "lag S"}, {2, "catch S"}, {2, "restart S back K"},
		}),
	},
	{
		name: "an old master serves on", length: 20, // what an exception covers; it must settle all the same
		worlds: []string{"world queue servers=3", "world queue servers=5 wait=1", "world setnx servers=3 wait=1"},
		steps:  join(work, network, []weighted{{5, "promote S"}, {5, "follow S R"}, {5, "lead C S"}, {2, "lead all S"}, {2, "lag S"}, {2, "restart S back K"}}),
	},
	{
		name: "another server", length: 16, prefix: "promote 1", // and all clients were told something since it was left
		worlds: []string{"world queue servers=2 strict", "world setnx servers=2 strict"},
		steps: join(quiet, []weighted{
			{6, told + ";lead all 0"}, {6, told + ";lead all 1"}, {2, "restart S back K"}, {1, "restart S all"}, {1, "flush S"}, {1, "reset S"},
		}),
	},
	{
		name: "another database", length: 16, prefix: "try 1 t",
		worlds: []string{"world queue strict", "world redisson strict"},
		steps:  join(quiet, []weighted{{8, told + ";swap 0"}, {1, "flush 0"}, {1, "reset 0"}, {1, "restart 0 all"}}),
	},
	{
		name: "nothing is forgotten", length: 20,
		worlds: []string{"world queue servers=2 calm", "world setnx servers=2 calm", "world redisson servers=2 calm"},
		steps: join(work, network, []weighted{
			{2, "reset 0"}, {2, "foreign 0"}, {2, "stop 1"}, {2, "start 1 all"}, {2, "follow 1 0"}, {1, "lag 1"}, {1, "pass 3700"},
			{2, "client C ttl=20"}, {2, "client C noinfo"}, {2, "watch C N"}, {1, "full 0"}, {2, "room 0"},
		}),
	},
	{
		name: "a clock that is set back", length: 18,
		worlds: []string{"world queue", "world setnx", "world redisson"},
		steps:  join(work, network, []weighted{{3, "clock 0 -3"}, {2, "clock 0 -30"}, {3, "restart 0 all"}, {1, "reset 0"}, {2, "watch C N"}}),
	},
	{
		name: "other TTLs", length: 18,
		worlds: []string{"world queue", "world queue servers=2", "world setnx"},
		steps: join(work, network, []weighted{
			{4, "client C ttl=20"}, {2, "client C ttl=40"}, {3, "restart 0 back K"}, {2, "restart 0 empty"}, {2, "flush 0"}, {2, "failover S"}, {2, "rejoin S K"},
		}),
	},
	{
		name: "long leases", length: 16,
		worlds: []string{"world queue servers=2 ttl=7200"},
		steps: join(work, network, []weighted{
			{6, "pass 3700"}, {3, "pass 7300"}, {5, "failover S"}, {2, "switchover S"}, {5, "rejoin S K"}, {3, "lag S"}, {2, "restart S back K"},
		}),
	},
	{
		name: "a cluster", length: 20,
		worlds: []string{"world queue servers=4 cluster=2", "world setnx servers=4 cluster=2", "world queue servers=6 cluster=2 wait=1"},
		steps: join(work, network, []weighted{
			{4, "move N 0"}, {4, "move N 1"}, {1, "move N 2"}, {3, "lag 2"}, {2, "lag 3"}, {4, "stop 0;take 2"}, {4, "take 2"}, {4, "take 3"}, {3, "start 0 back K;follow 0 2"}, {2, "take 0"}, {2, "restart 0 back K"},
			{2, "restart 1 empty"}, {1, "reset S"}, {1, "flush S"}, {1, "foreign S"},
		}),
	},
}

// told has three clients ask twice, in periods of a mark that differ.
const told = "pass 12;try 1 t;try 2 t;try 3 t;pass 12;try 1 t;try 2 t;try 3 t"

// quiet is work without new clients, who have been told nothing.
var quiet = []weighted{{8, "lock C N"}, {3, "try C N"}, {6, "release C N"}, {8, "pass P"}, {1, "crash C"}, {2, "watch C N"}}

func join(all ...[]weighted) (joined []weighted) {
	for _, some := range all {
		joined = append(joined, some...)
	}
	return joined
}

var (
	names = []string{"x", "x", "x", "y"}
	fates = []fate{waits, waits, waits, lost, unanswered, answersLate, again, "passes"}
	spans = []string{"0", "0.001", "0.3", "1", "2", "3.4", "5", "9", "10.5", "12", "21"}
)

// generate draws a schedule.
func (f *family) generate(r *rand.Rand) schedule {
	total := 0
	for _, s := range f.steps {
		total += s.weight
	}
	world := pick(r, f.worlds)
	servers := max(parseConfig(world).servers, 1)
	all := schedule{world, "client 1", "client 2", "client 3"}
	if f.prefix != "" {
		all = append(all, fill(r, f.prefix, servers)...)
	}
	for before := len(all); len(all) < f.length+before; {
		at := r.IntN(total)
		for _, s := range f.steps {
			if at -= s.weight; at < 0 {
				all = append(all, fill(r, s.text, servers)...)
				break
			}
		}
	}
	return all
}

// fill draws the arguments of a line.
func fill(r *rand.Rand, text string, servers int) []string {
	s := r.IntN(servers)
	other := (s + 1 + r.IntN(max(servers-1, 1))) % servers
	words := strings.Fields(strings.ReplaceAll(text, ";", " ; "))
	for i, word := range words {
		switch word {
		case "C":
			words[i] = fmt.Sprint(1 + r.IntN(4))
		case "N":
			words[i] = pick(r, names)
		case "S":
			words[i] = fmt.Sprint(s)
		case "R":
			words[i] = fmt.Sprint(other)
		case "K":
			words[i] = fmt.Sprint(r.IntN(1 + r.IntN(8)))
		case "P":
			words[i] = pick(r, spans)
		case "F":
			words[i] = string(pick(r, fates))
		}
	}
	return strings.Split(strings.Join(words, " "), " ; ")
}

func pick[T any](r *rand.Rand, all []T) T { return all[r.IntN(len(all))] }
