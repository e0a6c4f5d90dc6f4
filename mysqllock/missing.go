package mysqllock

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"strings"
)

// missing names tables, procedures and indexes that the steps make and that are not there.
type missing struct {
	tables, procedures, indexes []string

	keys     []string // statements that give tables that are there their indexes back
	some     bool     // some tables are missing, and others are there: what those say is not whole
	version1 bool     // there are tables, and procedures of version 1
}

func (m missing) none() bool { return len(m.tables)+len(m.procedures)+len(m.indexes) == 0 }

// lacks looks for everything: a dump may be without the procedures (mysqldump without --routines),
// and indexes are dropped by hand. Some servers keep the names of tables in lower case. The
// expressions are made here, and not at the start of every program.
func (s *schema) lacks(ctx context.Context, q querier) (m missing, err error) {
	there := map[string]bool{}
	err = each(ctx, q, `SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()
		UNION ALL SELECT CONCAT(routine_name, '()') FROM information_schema.routines WHERE routine_schema = DATABASE()
		UNION ALL SELECT CONCAT(table_name, '.', index_name) FROM information_schema.statistics WHERE table_schema = DATABASE()
		UNION ALL SELECT CONCAT(table_name, '.', constraint_name) FROM information_schema.table_constraints WHERE constraint_schema = DATABASE()`, func(r *sql.Rows) error {
		var name string
		err := r.Scan(&name)
		there[strings.ToLower(name)] = true
		return err
	})
	if err != nil {
		return m, err
	}
	text, tables := s.named(strings.Join(s.steps, "")), 0
	keys := regexp.MustCompile(`(?m)^  ((?:UNIQUE KEY|KEY|CONSTRAINT) (\w+) .*?|(PRIMARY) KEY .*?),?$`)
	for _, t := range regexp.MustCompile(`(?ms)^CREATE TABLE IF NOT EXISTS (\w+) \((.*?)^\)`).FindAllStringSubmatch(text, -1) {
		table := strings.ToLower(t[1])
		tables++
		if !there[table] {
			m.tables = append(m.tables, table)
			continue
		}
		for _, key := range keys.FindAllStringSubmatch(t[2], -1) {
			if name := strings.ToLower(key[2] + key[3]); !there[table+"."+name] {
				m.indexes = append(m.indexes, name+" of "+table)
				m.keys = append(m.keys, fmt.Sprintf("ALTER TABLE %s ADD %s", t[1], key[1]))
			}
		}
	}
	for _, p := range regexp.MustCompile(`(?m)^CREATE PROCEDURE (\w+)`).FindAllStringSubmatch(text, -1) {
		if name := strings.ToLower(p[1]); !there[name+"()"] {
			m.procedures = append(m.procedures, name)
		}
	}
	m.some = 0 < len(m.tables) && len(m.tables) < tables
	enter := strings.ToLower(s.prefix) + "enter_"
	m.version1 = len(m.tables) < tables && there[enter+"1()"] && !there[enter+"2()"]
	return m, nil
}
