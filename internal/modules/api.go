package main

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// apiDir has a file for each module that programs import, with what it exports, and records.txt
// with what the commands write and read as JSON. The verbs and flags are in command.txt, which a
// test of the command compares.
const apiDir = "api"

// Where the records are that others read: of the commands, and on the wire of hasp serve.
var records = []string{"cmd/hasp", "cmd/hasp-mcp", "internal/httpapi", "torture"}

// api compares what is exported with the files, so that a change of it is meant. apidiff of
// golang.org/x/exp tells which changes break programs, but wants two versions that build; a file in
// the same commit shows the change to who reads it, before there is a version.
func api(update bool) error {
	made := map[string]string{}
	for _, dir := range imported {
		text, err := face(dir, exported)
		if err != nil {
			return err
		}
		made[strings.ReplaceAll(path.Join("hasp", dir), "/", "-")+".txt"] = text
	}
	for _, dir := range records {
		text, err := face(dir, tagged)
		if err != nil {
			return err
		}
		made["records.txt"] += text
	}
	var changed []error
	for name, text := range made {
		file := filepath.Join(apiDir, name)
		if update {
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				return err
			}
			continue
		}
		kept, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if d := difference(string(kept), text); d != "" {
			changed = append(changed, fmt.Errorf("%s:\n%s", file, d))
		}
	}
	if len(changed) > 0 {
		return fmt.Errorf("what users program against has changed; if it is meant: make api UPDATE=1, and a line in CHANGELOG.md\n%w", errors.Join(changed...))
	}
	return nil
}

// difference lists the lines that only one of the texts has.
func difference(kept, made string) string {
	var b strings.Builder
	before, after := strings.Split(kept, "\n"), strings.Split(made, "\n")
	for _, line := range before {
		if !slices.Contains(after, line) {
			fmt.Fprintf(&b, "- %s\n", line)
		}
	}
	for _, line := range after {
		if !slices.Contains(before, line) {
			fmt.Fprintf(&b, "+ %s\n", line)
		}
	}
	if b.Len() == 0 && kept != made {
		return "the same lines in another order\n"
	}
	return b.String()
}

// face is a part of the declarations of all packages of the module in dir, in a fixed order.
func face(dir string, part func(*ast.File) []ast.Decl) (string, error) {
	var b strings.Builder
	err := filepath.WalkDir(filepath.FromSlash(dir), func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if p != filepath.FromSlash(dir) && foreign(p, d.Name(), dir) {
			return filepath.SkipDir
		}
		text, err := declarations(p, part)
		if err == nil && text != "" {
			fmt.Fprintf(&b, "package %s\n\n%s", importPath(filepath.ToSlash(p)), text)
		}
		return err
	})
	return b.String(), err
}

// foreign reports whether the directory p is no part of what users see of the module in dir.
func foreign(p, name, dir string) bool {
	if strings.HasPrefix(name, ".") || name == "testdata" || name == "dist" || name == "bin" {
		return true
	}
	if name == "internal" && !slices.Contains(records, dir) {
		return true
	}
	_, err := os.Stat(filepath.Join(p, "go.mod"))
	return err == nil
}

// declarations prints a part of the package in dir, for Linux, without comments and bodies.
func declarations(dir string, part func(*ast.File) []ast.Decl) (string, error) {
	pkg, err := build.Default.ImportDir(dir, 0)
	if none := (*build.NoGoError)(nil); errors.As(err, &none) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var all []string
	files, layout := token.NewFileSet(), printer.Config{Mode: printer.UseSpaces | printer.TabIndent, Tabwidth: 8}
	for _, name := range pkg.GoFiles {
		f, err := parser.ParseFile(files, filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return "", err
		}
		for _, d := range part(f) {
			var b bytes.Buffer
			if err := layout.Fprint(&b, files, d); err != nil {
				return "", err
			}
			all = append(all, b.String()+"\n\n")
		}
	}
	slices.Sort(all)
	return strings.Join(all, ""), nil
}

// exported are the exported declarations of a file of a package that can be imported.
func exported(f *ast.File) (all []ast.Decl) {
	if f.Name.Name == "main" || !ast.FileExports(f) {
		return nil
	}
	for _, d := range f.Decls {
		if fn, is := d.(*ast.FuncDecl); is {
			if fn.Recv != nil && !receiver(fn.Recv.List[0].Type).IsExported() {
				continue
			}
			fn.Body = nil
		}
		if g, is := d.(*ast.GenDecl); !is || g.Tok != token.IMPORT {
			all = append(all, d)
		}
	}
	return all
}

// receiver is the name of a method's type.
func receiver(x ast.Expr) *ast.Ident {
	switch x := x.(type) {
	case *ast.StarExpr:
		return receiver(x.X)
	case *ast.IndexExpr: // of one type parameter
		return receiver(x.X)
	case *ast.IndexListExpr:
		return receiver(x.X)
	case *ast.Ident:
		return x
	}
	return ast.NewIdent("_")
}

// tagged are the types of a file that have a field with a name in JSON.
func tagged(f *ast.File) (all []ast.Decl) {
	for _, d := range f.Decls {
		g, is := d.(*ast.GenDecl)
		if !is || g.Tok != token.TYPE {
			continue
		}
		found := false
		ast.Inspect(g, func(n ast.Node) bool {
			field, is := n.(*ast.Field)
			found = found || is && field.Tag != nil && strings.Contains(field.Tag.Value, "json:")
			return !found
		})
		if found {
			all = append(all, d)
		}
	}
	return all
}
