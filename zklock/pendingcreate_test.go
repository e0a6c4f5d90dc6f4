package zklock

import (
	"fmt"
	"path"
	"slices"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// BenchmarkPipelinedCreate shows what pipelining create and list saves, and that it
// takes the monitor to be sure that they do: when two goroutines send at once, the scheduler
// decides whether the list is made too early (%early of them), and then once more.
func BenchmarkPipelinedCreate(b *testing.B) {
	z := backends.SharedZooKeeper(b)
	back, err := open([]string{z.Addr}, nil)
	if err != nil {
		b.Fatal(err)
	}
	s := openSession(b, back, calm)
	parent, _ := back.opts.path("pipelined")
	if err := back.parents.make(b.Context(), s.conn, back.opts, parent); err != nil {
		b.Fatal(err)
	}
	create := func(i int) string {
		prefix := DialectCurator.prefix(requestOf("pipelined", i))
		node, err := s.zk.Create(parent+"/"+prefix, make([]byte, 200), zk.FlagEphemeralSequential, zk.WorldACL(zk.PermAll))
		if err != nil {
			b.Error(err)
		}
		return node
	}
	list := func() []string {
		names, _, err := s.zk.Children(parent)
		if err != nil {
			b.Error(err)
		}
		return names
	}
	var early [4]int // lists that were made before the node
	ways := []struct {
		name  string
		enter func(i int) (leave func() error)
	}{
		{"monitor", func(i int) func() error {
			k := s.Ticket(*requestOf("pipelined", i))
			if _, err := k.Enqueue(b.Context()); err != nil {
				b.Fatal(err)
			}
			return func() error { return k.Leave(b.Context()) }
		}},
		{"in-turn", func(i int) func() error {
			node := create(i)
			list()
			return func() error { return s.zk.Delete(node, -1) }
		}},
		{"list-started-last", func(i int) func() error {
			created := make(chan string, 1)
			go func() { created <- create(i) }()
			names := list()
			node := <-created
			return settle(s, node, names, &early[2], list)
		}},
		{"create-started-last", func(i int) func() error {
			listed := make(chan []string, 1)
			go func() { listed <- list() }()
			node := create(i)
			return settle(s, node, <-listed, &early[3], list)
		}},
	}
	took := make([][]time.Duration, len(ways))
	rounds := 0
	for ; b.Loop(); rounds++ { // interleaved: a server takes its time to warm up
		for w, way := range ways {
			began := time.Now()
			leave := way.enter(rounds)
			took[w] = append(took[w], time.Since(began))
			if err := leave(); err != nil {
				b.Fatal(err)
			}
		}
	}
	for w, way := range ways {
		slices.Sort(took[w])
		b.ReportMetric(float64(took[w][rounds/2].Microseconds()), way.name+"-p50-us")
		if early[w] > 0 {
			b.ReportMetric(100*float64(early[w])/float64(rounds), way.name+"-%early")
		}
	}
}

// settle lists again if the list was made before the node.
func settle(s *session, node string, names []string, early *int, list func() []string) (leave func() error) {
	if !slices.Contains(names, path.Base(node)) {
		*early++
		list()
	}
	return func() error { return s.zk.Delete(node, -1) }
}

func requestOf(name string, i int) *driver.Request {
	r := testkit.RequestAs(name, fmt.Sprint(name, "-", i, "-", time.Now().UnixNano()))
	return &r
}
