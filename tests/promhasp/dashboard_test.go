package promhasp_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/memlock"
	"github.com/hasplock/hasp/promhasp"
)

const (
	dashboard = "../../docs/grafana/hasp.json"
	document  = "../../docs/METRICS.md"
)

// names are those of a collector's metrics.
func names(c prometheus.Collector) (all []string) {
	ch := make(chan *prometheus.Desc, 100)
	c.Describe(ch)
	close(ch)
	for d := range ch {
		all = append(all, regexp.MustCompile(`fqName: "(\w+)"`).FindStringSubmatch(d.String())[1])
	}
	slices.Sort(all)
	return all
}

func queues(t *testing.T) prometheus.Collector {
	return promhasp.Queues(testkit.ClientOn(t, memlock.New().Backend(), hasp.WithTTL(10*time.Second)), 0)
}

// onlyExporters are the metrics that hasp exporter has and this package has not.
func onlyExporters(t *testing.T) map[string]bool {
	t.Helper()
	only := map[string]bool{}
	for _, m := range testkit.DocumentedMetrics(t, document) {
		only[m.Name] = m.From == "exporter"
	}
	return only
}

// docs/METRICS.md has what there is, and nothing else.
func TestMetricsAreDocumented(t *testing.T) {
	documented := map[string][]string{}
	for _, m := range testkit.DocumentedMetrics(t, document) {
		from, _, _ := strings.Cut(m.From, ",")
		documented[from] = append(documented[from], m.Name)
	}
	for from, there := range map[string][]string{"New": names(promhasp.New(promhasp.Options{})), "Queues": names(queues(t))} {
		slices.Sort(documented[from])
		if len(there) == 0 || !slices.Equal(documented[from], there) {
			t.Errorf("%s: documented are %q, there are %q", from, documented[from], there)
		}
	}
}

// The dashboard asks for what there is, and for all of it.
func TestDashboard(t *testing.T) {
	shown := map[string]bool{}
	for _, m := range testkit.DocumentedMetrics(t, document) {
		shown[m.Name] = false
	}
	for _, p := range testkit.Dashboard(t, dashboard) {
		for _, target := range p.Targets {
			for _, name := range testkit.Metrics(target.Expr) {
				if _, ok := shown[name]; !ok {
					t.Errorf("panel %q asks for %s, which does not exist", p.Title, name)
				}
				shown[name] = true
			}
		}
	}
	for name, is := range shown {
		if !is {
			t.Errorf("no panel shows %s", name)
		}
	}
}
