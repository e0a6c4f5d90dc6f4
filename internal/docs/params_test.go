package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// sources are the packages that read a driver's parameters.
var sources = map[string][]string{
	"redislock": {"redislock", "redislock/internal/redisconn", "driver/tlsparams"},
	"redlock":   {"redislock/redlock", "redislock/internal/redisconn", "driver/tlsparams"},
	"etcdlock":  {"etcdlock", "driver/tlsparams"},
	"zklock":    {"zklock", "driver/tlsparams"},
	"pglock":    {"pglock"},
	"mysqllock": {"mysqllock", "driver/tlsparams"},
	"filelock":  {"filelock"},
	"kubelock":  {"kubelock"},
	"s3lock":    {"s3lock", "driver/tlsparams"},
	"memlock":   {"memlock"},
	"httplock":  {"httplock", "driver/tlsparams"},
}

// The table of URL parameters in DRIVERS.md has exactly the parameters that the drivers read.
func TestParameters(t *testing.T) {
	documented := documentedParameters(t)
	for name, packages := range sources {
		read := map[string]bool{}
		for _, p := range packages {
			parametersOf(t, p, read)
		}
		if name != "memlock" && len(read) == 0 {
			t.Errorf("no parameter was found in the code of %s", name)
		}
		for p := range read {
			if !documented[name][p] {
				t.Errorf("%s reads %q, and the table in docs/DRIVERS.md does not say so", name, p)
			}
		}
		for p := range documented[name] {
			if !read[p] {
				t.Errorf("docs/DRIVERS.md gives %s the parameter %q, which its code does not read", name, p)
			}
		}
	}
}

func documentedParameters(t *testing.T) map[string]map[string]bool {
	all := map[string]map[string]bool{}
	_, section, _ := strings.Cut(read(t, "docs/DRIVERS.md"), "## Constructors and parameters\n")
	section, _, _ = strings.Cut(section, "\n## ")
	quoted := regexp.MustCompile("`([a-z_]+)`")
	for line := range strings.Lines(section) {
		cells := strings.Split(line, " | ")
		if len(cells) != 4 || !strings.HasPrefix(line, "| `") || strings.HasPrefix(line, "| `ttl`") {
			continue
		}
		for _, d := range strings.Split(strings.Trim(cells[3], " |\n"), ", ") {
			if sources[d] == nil {
				t.Errorf("there is no driver %q", d)
			}
			if all[d] == nil {
				all[d] = map[string]bool{}
			}
			for _, m := range quoted.FindAllStringSubmatch(cells[0], -1) {
				all[d][m[1]] = true
			}
		}
	}
	if len(all) < 7 {
		t.Fatalf("the table has %d drivers", len(all))
	}
	return all
}

// parametersOf adds the names that a package takes from driver.Params: the constants in calls of
// its methods and of driver.OneOf, and pglock's list of those that it passes on.
func parametersOf(t *testing.T, pkg string, all map[string]bool) {
	for _, f := range parsed(t, pkg) {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				called, args := "", n.Args
				if s, ok := n.Fun.(*ast.SelectorExpr); ok {
					if called = fmt.Sprint(s.X) + "." + s.Sel.Name; called == "driver.OneOf" {
						args = args[1:]
					}
				}
				if name, ok := text(args); ok && (called == "driver.OneOf" || slices.Contains([]string{"p.String", "p.Bool", "p.Int", "p.Duration", "p.Has"}, called)) {
					all[name] = true
				}
			case *ast.ValueSpec:
				if n.Names[0].Name != "passedOn" {
					return true
				}
				for _, e := range n.Values[0].(*ast.CompositeLit).Elts {
					if name, ok := text([]ast.Expr{e}); ok {
						all[name] = true
					}
				}
			}
			return true
		})
	}
}

func text(args []ast.Expr) (string, bool) {
	if len(args) == 0 {
		return "", false
	}
	l, ok := args[0].(*ast.BasicLit)
	if !ok || l.Kind != token.STRING {
		return "", false
	}
	s, err := strconv.Unquote(l.Value)
	return s, err == nil
}

func parsed(t *testing.T, pkg string) (files []*ast.File) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join("../..", pkg))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join("../..", pkg, e.Name()), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}

// Every driver has the same constructors: Open for a URL, New for a client that the user has, and Options
// where there is something to set; and none of its exported functions takes an internal type.
func TestConstructors(t *testing.T) {
	for name, packages := range sources {
		has := map[string]bool{}
		for _, f := range parsed(t, packages[0]) {
			internal := internalImports(f)
			for _, d := range f.Decls {
				switch d := d.(type) {
				case *ast.FuncDecl:
					if d.Recv != nil || !d.Name.IsExported() {
						continue
					}
					has[d.Name.Name] = true
					for _, field := range d.Type.Params.List {
						ast.Inspect(field.Type, func(n ast.Node) bool {
							if s, ok := n.(*ast.SelectorExpr); ok && internal[fmt.Sprint(s.X)] {
								t.Errorf("%s.%s takes a %s.%s, which a user cannot name", name, d.Name.Name, s.X, s.Sel.Name)
							}
							return true
						})
					}
				case *ast.GenDecl:
					for _, s := range d.Specs {
						if s, ok := s.(*ast.TypeSpec); ok {
							has[s.Name.Name] = true
						}
					}
				}
			}
		}
		for _, want := range []string{"Open", "New", "Options"} {
			if !has[want] && !(name == "memlock" && want == "Options") {
				t.Errorf("%s has no %s", name, want)
			}
		}
	}
}

func internalImports(f *ast.File) map[string]bool {
	all := map[string]bool{}
	for _, i := range f.Imports {
		if path, _ := strconv.Unquote(i.Path.Value); strings.Contains(path, "/internal/") {
			all[filepath.Base(path)] = true
		}
	}
	return all
}
