package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"strconv"
	"strings"
	"testing"
)

// Each name of onlyonce that a program of llms.txt uses is among its signatures, and so is each
// field that it sets: nobody has to guess. The programs are packages of this module, so they
// compile.
func TestLLMsHasWhatItsProgramsUse(t *testing.T) {
	t.Parallel()
	s := &site{root: "../..", pages: []*page{{Summary: "what it is"}}}
	all, err := s.llms()
	if err != nil {
		t.Fatal(err)
	}
	text := string(all)
	for _, kind := range kinds {
		source, err := programs.ReadFile("programs/" + kind + "/main.go")
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(text, "```go\n"+string(source)+"```") {
			t.Errorf("the program %s is not in llms.txt as it is", kind)
		}
		f, err := parser.ParseFile(token.NewFileSet(), kind, source, 0)
		if err != nil {
			t.Fatal(err)
		}
		used := 0
		for _, name := range namesOf(f) {
			used++
			_, section, found := strings.Cut(text, "### "+name.pkg+"\n")
			signatures, _, _ := strings.Cut(section, "```\n\n")
			if !found || !strings.Contains(signatures, " "+name.name) {
				t.Errorf("%s uses %s of %s, which has no signature in llms.txt", kind, name.name, name.pkg)
			}
		}
		if used < 5 {
			t.Errorf("%s uses %d names", kind, used)
		}
	}
	if !strings.Contains(text, "llms-full.txt") || len(text) > 200_000 {
		t.Errorf("llms.txt has %d bytes", len(text))
	}
}

type used struct{ pkg, name string }

// namesOf are the names of onlyonce's packages that a file uses, and the fields of their types that
// it sets.
func namesOf(f *ast.File) (all []used) {
	ours := map[string]string{}
	for _, i := range f.Imports {
		if p, err := strconv.Unquote(i.Path.Value); err == nil && strings.HasPrefix(p, module+"/") {
			ours[path.Base(p)] = p
		}
	}
	selected := func(e ast.Expr) (used, bool) {
		sel, is := e.(*ast.SelectorExpr)
		if !is {
			return used{}, false
		}
		id, is := sel.X.(*ast.Ident)
		if !is || ours[id.Name] == "" {
			return used{}, false
		}
		return used{ours[id.Name], sel.Sel.Name}, true
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if u, is := selected(n); is {
				all = append(all, u)
			}
		case *ast.CompositeLit:
			typ, is := selected(n.Type)
			for _, e := range n.Elts {
				if kv, keyed := e.(*ast.KeyValueExpr); is && keyed {
					if id, named := kv.Key.(*ast.Ident); named {
						all = append(all, used{typ.pkg, typ.name + "." + id.Name + " "})
					}
				}
			}
		}
		return true
	})
	return all
}
