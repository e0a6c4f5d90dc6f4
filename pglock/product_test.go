package pglock

import (
	"testing"

	"github.com/hasplock/hasp/driver/kit/doctor"
)

// Each sign has its product, and PostgreSQL's own words have none.
func TestProducts(t *testing.T) {
	for said, want := range map[string]string{
		"CockroachDB CCL v23.1.11 (x86_64-pc-linux-gnu, built 2023/09/27 01:53:43, go1.19.10)":     "CockroachDB",
		"PostgreSQL 11.2-YB-2.20.1.0-b0 on x86_64-pc-linux-gnu, compiled by clang version 16.0.6":  "YugabyteDB",
		"PostgreSQL 15.12-YB-2025.2.3.0-b1 on x86_64":                                              "YugabyteDB",
		"PostgreSQL 16 abc.dsql.us-east-1.on.aws":                                                  "Aurora DSQL",
		"PostgreSQL 11.7 on x86_64-pc-linux-gnu aurora_version":                                    "Aurora PostgreSQL",
		"PostgreSQL 17.4 on x86_64-pc-linux-gnu neon.tenant_id":                                    "Neon",
		"PostgreSQL 15.1 on aarch64 supabase_admin":                                                "Supabase",
		"PostgreSQL 16 abc.dsql-fnh4.us-east-1.on.aws":                                             "Aurora DSQL",
		"PostgreSQL 18.1 on x86_64-pc-linux-musl localhost":                                        "",
		"PostgreSQL 16.15 on x86_64-pc-linux-musl, compiled by gcc (Alpine 15.2.0) 15.2.0, 64-bit": "",
	} {
		if p, _ := doctor.Recognise(products, said); p.Name != want {
			t.Errorf("%q: %q, want %q", said, p.Name, want)
		}
	}
}
