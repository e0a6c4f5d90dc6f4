package drivertest

import (
	"crypto/rand"
	"errors"
	"slices"

	"github.com/hasplock/hasp/driver"
)

// Flaws in what administrators and onlookers are told.
var administerControls = []control{
	{
		name: "migrates from a version to a smaller one",
		flaw: flaw{migrate: func(*version) (int, int, error) { return 3, 2, nil }},
		seen: []string{"Administer/Migrate"},
	},
	{
		name: "says for ever that it has migrated",
		flaw: flaw{migrate: func(*version) (int, int, error) { return 0, newest, nil }},
		seen: []string{"Administer/Migrate"},
	},
	{
		name: "migrates to nothing",
		flaw: flaw{migrate: func(*version) (int, int, error) { return 0, 0, nil }},
		seen: []string{"Administer/Migrate"},
	},
	{
		name: "migrates further each time",
		flaw: flaw{migrate: func(v *version) (int, int, error) {
			v.Lock()
			defer v.Unlock()
			v.now++
			return v.now, v.now, nil
		}},
		seen: []string{"Administer/Migrate", "Administer/MigrateAtOnce"},
	},
	{
		name: "cannot migrate where somebody else has",
		flaw: flaw{migrate: func(v *version) (int, int, error) {
			if from, to, _ := v.migrate(); from != to {
				return from, to, nil
			}
			return 0, 0, errors.New("the table exists")
		}},
		seen: []string{"Administer/Migrate", "Administer/MigrateAtOnce"},
	},
	{
		name: "finds nothing to say of a store",
		flaw: flaw{diagnose: func() []driver.Finding { return nil }},
		seen: []string{"Administer/Diagnose"},
	},
	{
		name: "grades by words of its own",
		flaw: flaw{diagnose: func() []driver.Finding { return []driver.Finding{{Level: "error", Subject: "disk", Text: "full"}} }},
		seen: []string{"Administer/Diagnose"},
	},
	{
		name: "finds, and does not say what",
		flaw: flaw{diagnose: func() []driver.Finding { return []driver.Finding{{Level: driver.Bad, Subject: "disk"}} }},
		seen: []string{"Administer/Diagnose"},
	},
	{
		name: "lists the last when it is asked for the first",
		flaw: flaw{list: func(all []driver.Entry, limit int) []driver.Entry {
			if limit > 0 && limit < len(all) {
				return all[len(all)-limit:]
			}
			return all
		}},
		seen: []string{"Listing/Limit", "Contract/SeqGrows"},
	},
	{
		name: "lists one more than is asked for",
		flaw: flaw{list: func(all []driver.Entry, limit int) []driver.Entry {
			if limit > 0 {
				limit++
			}
			return driver.First(all, limit)
		}},
		seen: []string{"Listing/Limit"},
	},
	{
		name: "takes no limit for a limit of none",
		flaw: flaw{list: func(all []driver.Entry, limit int) []driver.Entry { return slices.Clone(all[:min(limit, len(all))]) }},
		seen: []string{"Listing/Limit"},
	},
	{
		name: "is another store with every connection",
		flaw: flaw{identity: func(id string) string { return id + rand.Text() }},
		seen: []string{"Listing/Identity"},
	},
	{
		name: "is no store in particular",
		flaw: flaw{identity: func(string) string { return "" }},
		seen: []string{"Listing/Identity"},
	},
}
