//go:build unix

package sqlfence_test

import (
	"database/sql"
	"strings"
	"testing"

	"github.com/hasplock/hasp/fencing/sqlfence"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/fencetest"
	"github.com/hasplock/hasp/internal/testtier"
)

func TestRule(t *testing.T) {
	each(t, func(t *testing.T, d database) {
		t.Run("table", func(t *testing.T) { fencetest.Rule(t, open, place{database: d}.String()) })
		t.Run("own column", func(t *testing.T) { fencetest.Rule(t, open, place{database: d, OwnColumn: true}.String()) })
	})
}

// MySQL's driver can count affected rows in another way and build statements by itself; what
// the fences conclude must not depend on it.
func TestRuleMySQLSettings(t *testing.T) {
	for _, setting := range []string{"clientFoundRows=true", "interpolateParams=true", "charset=latin1"} {
		d := mariadb(t)
		d.DSN += "?" + setting
		t.Run(setting, func(t *testing.T) {
			fencetest.Rule(t, open, place{database: d}.String())
			fencetest.Rule(t, open, place{database: d, OwnColumn: true}.String())
		})
	}
}

func TestPaused(t *testing.T) {
	store := backends.SharedRedis(t).URL()
	each(t, func(t *testing.T, d database) {
		t.Parallel() // it mostly waits
		for name, p := range map[string]place{"table": {database: d}, "own column": {database: d, OwnColumn: true}} {
			t.Run(name, func(t *testing.T) { fencetest.Paused(t, open, store, p.String()) })
		}
	})
}

func TestLoad(t *testing.T) {
	each(t, func(t *testing.T, d database) {
		t.Run("table", func(t *testing.T) { fencetest.Load(t, open, place{database: d}.String(), place{database: d}.String()) })
		t.Run("own column", func(t *testing.T) {
			fencetest.Load(t, open, place{database: d, OwnColumn: true}.String(), "")
		})
	})
}

// No isolation level lets a late write in: the weaker wait, the stronger refuse.
func TestLoadIsolation(t *testing.T) {
	testtier.Long(t)
	each(t, func(t *testing.T, d database) {
		if d.Dialect == sqlfence.SQLite {
			return // has one level, which TestLoad uses
		}
		for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
			t.Run(level.String(), func(t *testing.T) {
				fencetest.Load(t, open, place{database: d, Isolation: level}.String(), "")
			})
		}
	})
}

// SQLite with its defaults: no write-ahead log, no waiting, and even a commit can find the file
// busy. Only the tries help then.
func TestLoadPlainSQLite(t *testing.T) {
	d := sqlite(t)
	d.DSN, _, _ = strings.Cut(d.DSN, "?")
	fencetest.Load(t, open, place{database: d}.String(), "")
}
