package mysqllock

import (
	"testing"

	"github.com/hasplock/hasp/driver/kit/doctor"
)

// Each sign has its product.
func TestProductSigns(t *testing.T) {
	for said, want := range map[string]string{
		"8.0.11-TiDB-v7.5.2-serverless": "TiDB", "5.7.25-TiDB-v3.0.3": "TiDB", "8.0.23-vitess": "Vitess (PlanetScale)",
		"8.0.32 aurora_version:3.05.2": "Aurora MySQL", "8.4.11 aurora_version:": "", "11.8.9-MariaDB-ubu2404": "", "5.5.5-10.6.12-MariaDB-1:10.6.12+maria~ubu2004": "", "8.0.35-27": "",
	} {
		if p, _ := doctor.Recognise(products, said); p.Name != want {
			t.Errorf("%q: %q, want %q", said, p.Name, want)
		}
	}
}
