package examples

import (
	"go/parser"
	"go/scanner"
	"go/token"
	"os"
	"testing"
)

// The programs that people write first have at most forty lines of code: without blanks, comments and
// imports, and without lines that only close brackets.
func TestSize(t *testing.T) {
	for _, name := range []string{"cron", "leader", "inventory"} {
		if n := codeLines(t, name+"/main.go"); n > 40 {
			t.Errorf("%s has %d lines of code, at most 40 are allowed", name, n)
		}
	}
}

// The store of examples/keyvalue takes about a hundred lines.
func TestSizeOfStore(t *testing.T) {
	if n := codeLines(t, "keyvalue/store.go"); n > 100 {
		t.Errorf("%d lines of code", n)
	}
}

func codeLines(t *testing.T, path string) int {
	t.Helper()
	src, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, path, src, 0)
	if err != nil {
		t.Fatal(err)
	}
	imports := fset.Position(parsed.Decls[0].End()).Line
	var s scanner.Scanner
	file := fset.AddFile(path, -1, len(src))
	s.Init(file, src, nil, 0)
	lines := map[int]bool{}
	for {
		pos, tok, lit := s.Scan()
		switch tok {
		case token.EOF:
			return len(lines)
		case token.RBRACE, token.RPAREN, token.RBRACK, token.COMMA:
			continue
		case token.SEMICOLON:
			if lit == "\n" {
				continue // put in by the scanner
			}
		}
		if line := file.Line(pos); line > imports {
			lines[line] = true
		}
	}
}
