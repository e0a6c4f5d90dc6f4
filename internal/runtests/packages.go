package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// pkg is a package as go list describes it.
type pkg struct {
	ImportPath   string
	Dir          string
	TestGoFiles  []string
	XTestGoFiles []string
	TestImports  []string
	XTestImports []string
}

const (
	module   = "github.com/hasplock/hasp"
	testtier = module + "/internal/testtier"
	backends = module + "/internal/backends"

	drivertest = module + "/drivertest"
)

func list(patterns []string) ([]pkg, error) {
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Dir,TestGoFiles,XTestGoFiles,TestImports,XTestImports"}, patterns...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, stderr.String())
	}
	var pkgs []pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		switch err := d.Decode(&p); {
		case errors.Is(err, io.EOF):
			slices.SortStableFunc(pkgs, byLength)
			return pkgs, nil
		case err != nil:
			return nil, err
		}
		pkgs = append(pkgs, p)
	}
}

// byLength puts the packages first that have most test files, or the conformance suite, or start the command: they take
// longest, and go test begins with those that it is given first. One that came last would have the machine to itself, and wait.
func byLength(a, b pkg) int { return b.length() - a.length() }

func (p pkg) length() int {
	const more = 25 // test files
	n := p.tests()
	if slices.Contains(p.XTestImports, drivertest) || p.ImportPath == module+"/cmd/hasp" {
		n += more
	}
	return n
}

func (p pkg) tests() int { return len(p.TestGoFiles) + len(p.XTestGoFiles) }

// needsServers reports whether the package's tests are about servers. The command's start some,
// in a few scenarios: without servers those are skipped.
func (p pkg) needsServers() bool {
	return slices.Contains(slices.Concat(p.TestImports, p.XTestImports), backends) && p.ImportPath != module+"/cmd/hasp"
}

// long runs the tests that begin with testtier.Long, and no others: it comes after "test".
func (inv invocation) long(flags []string, pkgs []pkg) (invocation, error) {
	var names []string
	for _, p := range pkgs {
		found, err := p.longTests()
		if err != nil {
			return inv, err
		}
		if len(found) > 0 {
			inv.packages = append(inv.packages, p.ImportPath)
			names = append(names, found...)
		}
	}
	// One pattern for all packages: a name that is long in one and short in another runs twice.
	slices.Sort(names)
	inv.flags = append(flags, "-run=^("+strings.Join(slices.Compact(names), "|")+")$")
	return inv, nil
}

// longTests names the test functions that begin with a call of testtier.Long. Elsewhere a call
// is an error: go test chooses by name, and the rest of that test would run twice.
func (p pkg) longTests() (names []string, err error) {
	for _, file := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
		fset := token.NewFileSet()
		tree, err := parser.ParseFile(fset, filepath.Join(p.Dir, file), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		calls := 0
		ast.Inspect(tree, func(n ast.Node) bool {
			if isLong(n) {
				calls++
			}
			return true
		})
		for _, d := range tree.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Test") || f.Body == nil || len(f.Body.List) == 0 {
				continue
			}
			if s, ok := f.Body.List[0].(*ast.ExprStmt); ok && isLong(s.X) {
				names = append(names, f.Name.Name)
				calls--
			}
		}
		if calls > 0 {
			return nil, fmt.Errorf("%s/%s: testtier.Long may only be the first statement of a test", p.ImportPath, file)
		}
	}
	return names, nil
}

// isLong reports whether n is a call of testtier.Long.
func isLong(n ast.Node) bool {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return false
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || sel.Sel.Name != "Long" {
		return false
	}
	x, ok := sel.X.(*ast.Ident)
	return ok && x.Name == path.Base(testtier)
}
