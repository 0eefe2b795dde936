package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"strings"
	"testing"
)

// What of a comment is a name: `a` or `a.b` in quotes or in [a.b], a word with a capital
// inside, and a.b if a is a package of ours or a single letter.
var (
	ident        = regexp.MustCompile(`\w+`)
	marked       = regexp.MustCompile("[`\\[]\\*?([A-Za-z_][\\w.]*)[`\\]]")
	camel        = regexp.MustCompile(`\b[a-z]\w*[A-Z]\w*\b`)
	dotted       = regexp.MustCompile(`\b(?:([a-z])\.[A-Za-z]\w+|([a-z]\w+)\.([A-Z]\w*))\b`)
	code         = regexp.MustCompile(`(?m)^\t.*$`)
	firstWord    = regexp.MustCompile(`^\w+\b`)
	testFunction = regexp.MustCompile(`^(Test|Fuzz|Benchmark|Example)`)
)

// others are names of other programs, which no code of ours has.
var others = map[string]bool{"gRPC": true, "uXXXX": true}

// set is the names that a file, a package or the repository has: identifiers and words of strings.
type set map[string]bool

func (s set) add(text string) {
	for _, w := range ident.FindAllString(text, -1) {
		s[w] = true
	}
}

// A name in a comment exists. Renames leave comments behind that nothing else finds.
func TestNamesInCommentsExist(t *testing.T) {
	t.Parallel()
	fset := token.NewFileSet()
	files := map[string]*ast.File{}
	byFile := map[string]set{}
	byPackage := map[string]set{}
	all := set{}
	for _, name := range tracked(t, "*.sql", "*.html", "*.proto", "*.py", "*.yaml", "*.json", "*.js") {
		all.add(read(t, name))
	}
	of := func(sets map[string]set, key string) set {
		if sets[key] == nil {
			sets[key] = set{}
		}
		return sets[key]
	}
	for _, name := range tracked(t, "*.go") {
		f, err := parser.ParseFile(fset, name, read(t, name), parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = f
		sets := []set{of(byFile, name), all}
		if !strings.HasPrefix(name, "test/") && !strings.Contains(name, "/testdata/") {
			sets = append(sets, of(byPackage, path.Base(path.Dir(name))))
		}
		ast.Inspect(f, func(n ast.Node) bool {
			for _, s := range sets {
				switch n := n.(type) {
				case *ast.Ident:
					s[n.Name] = true
				case *ast.BasicLit:
					s.add(n.Value)
				}
			}
			_, comment := n.(*ast.CommentGroup)
			return !comment
		})
	}
	functions := map[string]set{} // by directory, those that it declares
	for name, f := range files {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				of(functions, path.Dir(name))[fn.Name.Name] = true
			}
		}
	}
	for name, f := range files {
		for _, group := range f.Comments {
			text := code.ReplaceAllString(group.Text(), "")
			missing := func(have set, n string) {
				if !have[n] && !others[n] {
					t.Errorf("%s: %s does not exist", fset.Position(group.Pos()), n)
				}
			}
			for _, m := range marked.FindAllStringSubmatch(text, -1) {
				for part := range strings.SplitSeq(m[1], ".") {
					missing(all, part)
				}
			}
			for _, n := range camel.FindAllString(text, -1) {
				missing(all, n)
			}
			for _, m := range dotted.FindAllStringSubmatch(text, -1) {
				if m[1] != "" {
					missing(byFile[name], m[1])
				} else if pkg := byPackage[m[2]]; pkg != nil && !byPackage[path.Base(path.Dir(name))][m[3]] {
					missing(pkg, m[3])
				}
			}
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Doc == nil {
				continue
			}
			w := firstWord.FindString(fn.Doc.Text())
			lower := w != "" && w[0] >= 'a' && w[0] <= 'z' && !testFunction.MatchString(fn.Name.Name)
			wrong := w != fn.Name.Name &&
				(lower || fn.Name.IsExported() && !strings.HasSuffix(name, "_test.go") && functions[path.Dir(name)][w])
			if wrong {
				t.Errorf("%s: the comment of %s begins with %s", fset.Position(fn.Pos()), fn.Name.Name, w)
			}
		}
	}
}
