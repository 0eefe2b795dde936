package source

import (
	"crypto/sha256"
	"encoding/hex"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strings"
	"sync"
)

// Module is the path of the root module.
const Module = "github.com/onlyonce/onlyonce"

// Decls is what a Go file declares.
type Decls struct {
	Hash  string // of the file's content
	Funcs []Decl
	// Uses are by the name of a declaration: the names that it mentions, with the package of
	// another one in front, and the functions of the schema, for example onlyonce.fence.
	Uses map[string][]string
	// Rules are by the name of a declaration: the ids of rules that it names, or its comment.
	Rules map[string][]string
}

var rule = regexp.MustCompile(`\b[A-Z]\d{1,2}\b`)

// Rules returns the ids of the rules that a text names.
func Rules(text string) []string { return rule.FindAllString(text, -1) }

// Decl is a function, and its first and last line.
type Decl struct {
	Name     string
	From, To int
}

var read sync.Map // of *Decls by file

// ReadDecls reads a Go file once.
func ReadDecls(name string) (*Decls, error) {
	if d, ok := read.Load(name); ok {
		return d.(*Decls), nil
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, name, text, parser.SkipObjectResolution|parser.ParseComments)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	d := &Decls{Hash: hex.EncodeToString(sum[:8]), Uses: map[string][]string{}, Rules: map[string][]string{}}
	named := func(name string, doc *ast.CommentGroup, n ast.Node) {
		from := n.Pos()
		if doc != nil {
			from = doc.Pos()
		}
		d.Rules[name] = Rules(string(text[files.Position(from).Offset:files.Position(n.End()).Offset]))
	}
	for _, decl := range f.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			name := Receiver(decl) + decl.Name.Name
			d.Funcs = append(d.Funcs, Decl{name, files.Position(decl.Pos()).Line, files.Position(decl.End()).Line})
			d.Uses[name] = append(d.Uses[name], mentions(decl)...)
			named(name, decl.Doc, decl)
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				values, ok := spec.(*ast.ValueSpec)
				if !ok {
					continue
				}
				for _, name := range values.Names {
					d.Uses[name.Name] = append(d.Uses[name.Name], mentions(values)...)
					named(name.Name, decl.Doc, values)
				}
			}
		}
	}
	read.Store(name, d)
	return d, nil
}

func mentions(n ast.Node) (names []string) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok {
				names = append(names, x.Name+"."+n.Sel.Name)
			}
		case *ast.Ident:
			names = append(names, n.Name)
		case *ast.BasicLit:
			if n.Kind == token.STRING {
				names = append(names, Functions(n.Value)...)
			}
		}
		return true
	})
	return names
}

// Functions returns what a text names of the schema onlyonce.
func Functions(text string) (names []string) {
	for {
		_, after, ok := strings.Cut(text, "onlyonce.")
		if !ok {
			return names
		}
		end := strings.IndexFunc(after, func(r rune) bool { return !isWord(r) })
		if end < 0 {
			end = len(after)
		}
		names = append(names, "onlyonce."+after[:end])
		text = after[end:]
	}
}

// Read returns a file's text.
func Read(name string) (string, error) {
	text, err := os.ReadFile(name)
	return string(text), err
}
