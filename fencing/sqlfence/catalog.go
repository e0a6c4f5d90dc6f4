package sqlfence

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
)

// uniqueIndex is a unique index, with the columns that make a row unique.
type uniqueIndex struct {
	name    string
	columns []string
	text    map[string]bool // compared as text; MySQL only
	broken  bool            // does not cover whole columns
}

// covers reports whether rows found by the columns of key are found by this index, so that there is
// at most one. The index may have fewer columns: they alone are unique already.
func (ix *uniqueIndex) covers(key []string) bool {
	if ix.broken {
		return false
	}
	for _, c := range ix.columns {
		if !slices.Contains(key, c) {
			return false
		}
	}
	return len(ix.columns) > 0
}

func describe(indexes []*uniqueIndex) string {
	var all []string
	for _, ix := range indexes {
		if !ix.broken {
			all = append(all, fmt.Sprintf("%s (%s)", ix.name, strings.Join(ix.columns, ", ")))
		}
	}
	if all == nil {
		return "none"
	}
	return strings.Join(all, ", ")
}

// The queries of the catalogs. Each returns rows of index, column, whether this part of the index
// is usable, and whether the column is text; the parts of an index are adjacent.
//
// PostgreSQL: only the key columns make it unique, not those of INCLUDE.
//
// MySQL: an expression has no column name, a prefix has a SUB_PART. Only the engine's row locks
// matter, so an index of a table without row locks counts as no index.
//
// SQLite: a table's INTEGER PRIMARY KEY is its row number and has no separate index. An expression
// has no name.
var catalogs = map[Dialect]string{
	PostgreSQL: `
		SELECT c.relname, a.attname, i.indexprs IS NULL AND i.indpred IS NULL AND i.indisvalid AND i.indimmediate, false
		FROM pg_index i
		JOIN pg_class c ON c.oid = i.indexrelid
		LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
		WHERE i.indrelid = to_regclass($1) AND i.indisunique
		ORDER BY i.indisprimary DESC, c.relname`,
	MySQL: `
		SELECT s.index_name, s.column_name, s.column_name IS NOT NULL AND s.sub_part IS NULL AND t.engine = 'InnoDB',
			COALESCE(c.data_type IN ('char', 'varchar', 'tinytext', 'text', 'mediumtext', 'longtext', 'binary', 'varbinary',
				'tinyblob', 'blob', 'mediumblob', 'longblob', 'enum', 'set'), false)
		FROM information_schema.statistics s
		JOIN information_schema.tables t ON t.table_schema = s.table_schema AND t.table_name = s.table_name
		LEFT JOIN information_schema.columns c
			ON c.table_schema = s.table_schema AND c.table_name = s.table_name AND c.column_name = s.column_name
		WHERE s.table_schema = COALESCE(NULLIF(?, ''), database()) AND s.table_name = ? AND s.non_unique = 0
		ORDER BY s.index_name <> 'PRIMARY', s.index_name`,
	SQLite: `
		SELECT 'PRIMARY KEY', name, true, false FROM pragma_table_info(?, ?) WHERE pk > 0
		UNION ALL
		SELECT l.name, i.name, i.name IS NOT NULL AND NOT l.partial, false
		FROM pragma_index_list(?, ?) l, pragma_index_info(l.name, ?) i WHERE l."unique" AND l.origin <> 'pk'`,
}

func (d Dialect) uniqueIndexes(ctx context.Context, db Queryer, table string) ([]*uniqueIndex, error) {
	schema, name, found := strings.Cut(table, ".")
	if !found {
		schema, name = "", table
	}
	var args []any
	switch d {
	case PostgreSQL:
		args = []any{d.quote(table)}
	case MySQL:
		args = []any{schema, name}
	case SQLite:
		if schema == "" {
			schema = "main"
		}
		args = []any{name, schema, name, schema, schema}
	}
	rows, err := db.QueryContext(ctx, catalogs[d], args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []*uniqueIndex
	for rows.Next() {
		var index string
		var column sql.NullString
		var usable, text bool
		if err := rows.Scan(&index, &column, &usable, &text); err != nil {
			return nil, err
		}
		if len(all) == 0 || all[len(all)-1].name != index {
			all = append(all, &uniqueIndex{name: index, text: map[string]bool{}})
		}
		ix := all[len(all)-1]
		ix.broken = ix.broken || !usable
		// If no statement here can contain the column's name, the index is useless, since no key
		// contains that name.
		ix.columns = append(ix.columns, column.String)
		ix.text[column.String] = text
	}
	return all, rows.Err()
}
