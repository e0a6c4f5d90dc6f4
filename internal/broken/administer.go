package broken

import (
	"errors"
	"slices"

	"github.com/hasplock/hasp/driver"
)

// Flaws in what administrators and onlookers are told.
var administerControls = []Control{
	{
		Name: "migrates from a version to a smaller one",
		Flaw: Flaw{migrate: func(*version) (int, int, error) { return 3, 2, nil }},
		Seen: []string{"Administer/Migrate"},
	},
	{
		Name: "says for ever that it has migrated",
		Flaw: Flaw{migrate: func(*version) (int, int, error) { return 0, newest, nil }},
		Seen: []string{"Administer/Migrate"},
	},
	{
		Name: "migrates to nothing",
		Flaw: Flaw{migrate: func(*version) (int, int, error) { return 0, 0, nil }},
		Seen: []string{"Administer/Migrate"},
	},
	{
		Name: "migrates further each time",
		Flaw: Flaw{migrate: func(v *version) (int, int, error) {
			v.Lock()
			defer v.Unlock()
			v.now++
			return v.now, v.now, nil
		}},
		Seen: []string{"Administer/Migrate", "Administer/MigrateAtOnce"},
	},
	{
		Name: "cannot migrate where another client has",
		Flaw: Flaw{migrate: func(v *version) (int, int, error) {
			if from, to, _ := v.migrate(); from != to {
				return from, to, nil
			}
			return 0, 0, errors.New("the table exists")
		}},
		Seen: []string{"Administer/Migrate", "Administer/MigrateAtOnce"},
	},
	{
		Name: "finds nothing to say of a store",
		Flaw: Flaw{diagnose: func() []driver.Finding { return nil }},
		Seen: []string{"Administer/Diagnose"},
	},
	{
		Name: "grades by unknown words",
		Flaw: Flaw{diagnose: func() []driver.Finding { return []driver.Finding{{Level: "error", Subject: "disk", Text: "full"}} }},
		Seen: []string{"Administer/Diagnose"},
	},
	{
		Name: "finds, and does not say what",
		Flaw: Flaw{diagnose: func() []driver.Finding { return []driver.Finding{{Level: driver.Bad, Subject: "disk"}} }},
		Seen: []string{"Administer/Diagnose"},
	},
	{
		Name: "lists the last when it is asked for the first",
		Flaw: Flaw{list: func(all []driver.Entry, limit int) []driver.Entry {
			if limit > 0 && limit < len(all) {
				return all[len(all)-limit:]
			}
			return all
		}},
		Seen: []string{"Listing/Limit", "Contract/SeqGrows"},
	},
	{
		Name: "lists one more than is asked for",
		Flaw: Flaw{list: func(all []driver.Entry, limit int) []driver.Entry {
			if limit > 0 {
				limit++
			}
			return driver.First(all, limit)
		}},
		Seen: []string{"Listing/Limit"},
	},
	{
		Name: "takes no limit for a limit of none",
		Flaw: Flaw{list: func(all []driver.Entry, limit int) []driver.Entry { return slices.Clone(all[:min(limit, len(all))]) }},
		Seen: []string{"Listing/Limit"},
	},
}
