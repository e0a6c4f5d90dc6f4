package adapters_test

import (
	"errors"
	"testing"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/adapters/certmagichasp"
	"github.com/hasplock/hasp/adapters/cronhasp"
	"github.com/hasplock/hasp/hasptest"
	"github.com/hasplock/hasp/internal/testkit"
)

// quarantined is a client of a store that may have forgotten locks.
func quarantined(t *testing.T) *hasp.Client {
	store := &testkit.Quarantined{Backend: hasptest.New().Backend()}
	store.Left.Store(int64(time.Minute))
	return testkit.ClientOn(t, store)
}

// A store that may have forgotten locks has not said that another machine has the lock.
func TestCertificatesInQuarantine(t *testing.T) {
	s := certmagichasp.New(nil, quarantined(t))
	if got, err := s.TryLock(t.Context(), "acme"); got || !errors.Is(err, hasp.ErrQuarantine) {
		t.Errorf("%t, %v", got, err)
	}
}

// A store that may have forgotten locks refuses the run on every machine: that is told, or the job
// would run nowhere and none would know.
func TestCronInQuarantine(t *testing.T) {
	var told []error
	wrap := cronhasp.Locked(quarantined(t), "report", func(err error) { told = append(told, err) })
	wrap(cron.FuncJob(func() { t.Error("it ran without a lock") })).Run()
	if len(told) != 1 || !errors.Is(told[0], hasp.ErrQuarantine) {
		t.Errorf("told %v", told)
	}
}
