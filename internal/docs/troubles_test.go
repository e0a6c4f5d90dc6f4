package docs

import (
	"go/ast"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const troubles = "docs/TROUBLESHOOTING.md"

// answers are the drivers' tables that have a cure for what a server answers.
var answers = []struct {
	heading, pkg, table string
	text                func(fields []string) string // how the answer begins, or what is in it
}{
	{"Redis, Valkey and Redlock", "redislock/internal/redisconn", "refusals", func(f []string) string { return f[0] }},
	{"etcd", "etcdlock", "cures", func(f []string) string { return f[0] }},
	{"PostgreSQL", "pglock", "refusals", func(f []string) string {
		switch {
		case f[0] == "":
			return f[1]
		case f[1] == "":
			return "SQLSTATE " + f[0]
		}
		return f[1] + " (SQLSTATE " + f[0] + ")"
	}},
	{"MySQL and MariaDB", "mysqllock", "refusals", func(f []string) string { return "Error " + f[0] }},
}

// The second half of TROUBLESHOOTING.md is made of these tables. After a change: go test ./internal/docs -update
func TestTroublesAreMade(t *testing.T) {
	page := read(t, troubles)
	before, _, found := strings.Cut(page, "\n## What a store answers\n")
	if !found {
		t.Fatal("the heading of the made part is missing")
	}
	made := before + "\n## What a store answers\n\nhasp's error ends with the store's answer, which has one of these texts.\n"
	for _, a := range answers {
		made += "\n### " + a.heading + "\n\n| answer | cause or cure |\n| --- | --- |\n"
		rows := tableOf(t, a.pkg, a.table)
		for i, row := range rows {
			cure := row[len(row)-1]
			if slices.ContainsFunc(rows[:i], func(r []string) bool { return r[len(r)-1] == cure }) {
				continue // it is beside the first
			}
			var texts []string
			for _, r := range rows {
				if r[len(r)-1] == cure {
					texts = append(texts, "`"+a.text(r)+"`")
				}
			}
			made += "| " + strings.Join(texts, ", ") + " | " + cure + " |\n"
		}
	}
	if *update {
		if err := os.WriteFile("../../"+troubles, []byte(made), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if page != made {
		t.Errorf("%s is not what the drivers' tables make: go test ./internal/docs -update", troubles)
	}
}

// tableOf returns the rows of a package's variable: literals and named constants, as text.
func tableOf(t *testing.T, pkg, name string) (rows [][]string) {
	t.Helper()
	files, named := parsed(t, pkg), map[string]string{}
	var table *ast.CompositeLit
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			s, ok := n.(*ast.ValueSpec)
			if !ok || len(s.Values) != len(s.Names) {
				return true
			}
			for i, v := range s.Values {
				switch v := v.(type) {
				case *ast.BasicLit:
					named[s.Names[i].Name] = literal(v)
				case *ast.CompositeLit:
					if s.Names[i].Name == name {
						table = v
					}
				}
			}
			return true
		})
	}
	if table == nil {
		t.Fatalf("%s has no table %s", pkg, name)
	}
	for _, e := range table.Elts {
		var fields []ast.Expr
		switch e := e.(type) {
		case *ast.CompositeLit:
			fields = e.Elts
		case *ast.KeyValueExpr:
			fields = []ast.Expr{e.Key, e.Value}
		}
		var row []string
		for _, f := range fields {
			switch f := f.(type) {
			case *ast.BasicLit:
				row = append(row, literal(f))
			case *ast.Ident:
				row = append(row, named[f.Name])
			}
		}
		if len(row) < 2 || row[len(row)-1] == "" {
			t.Fatalf("a row of %s.%s cannot be read: %q", pkg, name, row)
		}
		rows = append(rows, row)
	}
	return rows
}

func literal(l *ast.BasicLit) string {
	if l.Kind != token.STRING {
		return l.Value
	}
	s, _ := strconv.Unquote(l.Value)
	return s
}

// Each text in the first half of TROUBLESHOOTING.md is in the code: in a literal, so that the page
// does not go on about an error that is said differently now.
func TestTroublesExist(t *testing.T) {
	var code strings.Builder
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
			var text []byte
			text, err = os.ReadFile(path)
			code.Write(text)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	page, _, _ := strings.Cut(read(t, troubles), "\n## What a store answers\n")
	texts := regexp.MustCompile("(?m)^\\| `([^`]+)`(?:, `([^`]+)`)? \\|").FindAllStringSubmatch(page, -1)
	if len(texts) < 15 {
		t.Fatalf("%d texts", len(texts))
	}
	all := code.String()
	for _, m := range texts {
		for _, text := range m[1:] {
			if !strings.Contains(all, text) {
				t.Errorf("%s has an error that no code has: %q", troubles, text)
			}
		}
	}
}
