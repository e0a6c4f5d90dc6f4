package promhasp_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/memlock"
	"github.com/hasplock/hasp/promhasp"
)

// The dashboard asks for what there is, and for all of it.
func TestDashboard(t *testing.T) {
	there := map[string]bool{}
	for _, c := range []prometheus.Collector{
		promhasp.New(promhasp.Options{}), promhasp.Queues(testkit.ClientOn(t, memlock.New().Backend(), hasp.WithTTL(hasp.DefaultTTL)), 0),
	} {
		ch := make(chan *prometheus.Desc, 100)
		c.Describe(ch)
		close(ch)
		for d := range ch {
			there[regexp.MustCompile(`fqName: "(\w+)"`).FindStringSubmatch(d.String())[1]] = false
		}
	}
	for _, p := range panels(t) {
		for _, target := range p.Targets {
			for _, name := range regexp.MustCompile(`hasp_\w+`).FindAllString(target.Expr, -1) {
				name = strings.TrimSuffix(name, "_bucket")
				if _, ok := there[name]; !ok {
					t.Errorf("panel %q asks for %s, which does not exist", p.Title, name)
				}
				there[name] = true
			}
		}
	}
	for name, shown := range there {
		if !shown && name != "hasp_queue_up" && name != "hasp_queue_holders" {
			t.Errorf("no panel shows %s", name)
		}
	}
}
