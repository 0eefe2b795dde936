package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// errorVar is an exported error of a public package.
type errorVar struct {
	dir, name string
	value     ast.Expr
	imports   map[string]string // by name
}

var sentinel = regexp.MustCompile(`^Err[A-Z]`)

// valueAt is the value of one of a declaration's names, or nil.
func valueAt(n *ast.ValueSpec, i int) ast.Expr {
	if i < len(n.Values) {
		return n.Values[i]
	}
	return nil
}

// errorVars are those that a folder's files declare as variables with a value.
func errorVars(t *testing.T, root, dir string) (all []errorVar) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		imports := map[string]string{}
		for _, i := range f.Imports {
			at, _ := strconv.Unquote(i.Path.Value)
			imports[path.Base(at)] = at
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				return false
			case *ast.ValueSpec:
				for i, name := range n.Names {
					_, own := valueAt(n, i).(*ast.UnaryExpr) // of a type whose method Error says whose it is
					if sentinel.MatchString(name.Name) && valueAt(n, i) != nil && !own {
						all = append(all, errorVar{dir, name.Name, n.Values[i], imports})
					}
				}
			}
			return true
		})
	}
	return all
}

// textOf returns the beginning of an error's text, or "" if another sentinel is there. It follows
// names of other packages of ours.
func textOf(t *testing.T, root string, v errorVar) string {
	t.Helper()
	switch e := v.value.(type) {
	case *ast.SelectorExpr:
		pkg := v.imports[e.X.(*ast.Ident).Name]
		for _, other := range errorVars(t, root, strings.TrimPrefix(pkg, module)) {
			if other.name == e.Sel.Name {
				return textOf(t, root, other)
			}
		}
		t.Errorf("%s: %s is not found in %s", v.dir, v.name, pkg)
	case *ast.CallExpr:
		first := e.Args[0]
		for {
			sum, is := first.(*ast.BinaryExpr)
			if !is {
				break
			}
			first = sum.X
		}
		if text, is := first.(*ast.BasicLit); is {
			s, _ := strconv.Unquote(text.Value)
			if strings.HasPrefix(s, "%w") {
				return ""
			}
			return s
		}
	}
	t.Errorf("%s: the text of %s is no literal", v.dir, v.name)
	return ""
}

// Whoever finds an error in a log has to know whose it is: the text of each exported error begins
// with its package's name, or with the folder's too if the name alone says too little.
func TestErrorsNameTheirPackage(t *testing.T) {
	t.Parallel()
	const root = "../.."
	n := 0
	err := filepath.WalkDir(root, func(at string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(root, at)
		switch rel = filepath.ToSlash(rel); {
		case rel == "test", rel == "examples", rel == "cmd", d.Name() == "internal", d.Name() == "testdata",
			strings.HasPrefix(d.Name(), ".") && rel != ".":
			return fs.SkipDir
		}
		for _, v := range errorVars(t, root, rel) {
			n++
			text := textOf(t, root, v)
			prefix, _, _ := strings.Cut(text, ": ")
			if text != "" && prefix != path.Base(rel) && prefix != path.Join(path.Base(path.Dir(rel)), path.Base(rel)) {
				t.Errorf("%s: the text of %s begins with %q", rel, v.name, text)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n < 60 {
		t.Errorf("%d errors are found", n)
	}
}
