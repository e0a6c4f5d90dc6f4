package mysqllock_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// A real server with other words for its version: what cannot run hasp's procedures is refused at
// the first use, and named; getlock without tables has none, and the doctor says that it was never
// run there. The control is the same server with its own version.
func TestProducts(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{"8.0.11-TiDB-v8.5.1": "TiDB", "8.0.40-Vitess": "Vitess", "10.11.6-MariaDB": ""} {
		m := backends.StartMariaDB(t, backends.MariaDBOptions{Config: []string{"version=" + version}})
		base := sqlkit.MariaDBStore(t, m)
		for _, strategy := range []string{"table", "getlock"} {
			l, err := client(t, sqlkit.With(base, "strategy="+strategy)).Mutex("a").Lock(ctx(t))
			if want == "" && err == nil {
				testkit.Release(t, l)
			} else if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s, %s: %v", version, strategy, err)
			}
		}
		bare := sqlkit.With(base, "strategy=getlock", "fence=off")
		testkit.Release(t, testkit.Lock(t, client(t, bare), "a"))
		if all := findings(t, bare); told(all, driver.Warn, "product", want) != (want != "") {
			t.Errorf("%s: %+v", version, all)
		}
	}
}
