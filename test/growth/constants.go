package main

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"strings"
)

// modulePath begins the import paths of this module's packages.
const modulePath = "github.com/onlyonce/onlyonce/"

// sources reads constants out of the source of this module's packages, so that the rig runs the
// statements that the engines run, although they are not exported. It is an importer for go/types:
// packages of this module are checked, and any other is empty, which no constant needs.
type sources struct {
	root  string // folder of the module
	fset  *token.FileSet
	known map[string]*types.Package
	named map[string]string // texts of statements whose parameters have names, by import path and name
}

func newSources(root string) *sources {
	return &sources{root: root, fset: token.NewFileSet(), known: map[string]*types.Package{}, named: map[string]string{}}
}

// Import returns a package of this module, or an empty one.
func (s *sources) Import(path string) (*types.Package, error) {
	if p := s.known[path]; p != nil {
		return p, nil
	}
	folder, ours := strings.CutPrefix(path, modulePath)
	if !ours {
		p := types.NewPackage(path, filepath.Base(path))
		p.MarkComplete()
		s.known[path] = p
		return p, nil
	}
	found, err := build.ImportDir(filepath.Join(s.root, folder), 0)
	if err != nil {
		return nil, err
	}
	var files []*ast.File
	for _, name := range found.GoFiles {
		f, err := parser.ParseFile(s.fset, filepath.Join(found.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	// Errors are expected: other modules' packages are empty.
	cfg := types.Config{Importer: s, FakeImportC: true, IgnoreFuncBodies: true, Error: func(error) {}}
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
	p, _ := cfg.Check(path, s.fset, files, info)
	s.known[path] = p
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			if v, ok := n.(*ast.ValueSpec); ok && len(v.Values) == 1 {
				s.addNamed(path, v.Names[0].Name, v.Values[0], info)
			}
			return true
		})
	}
	return p, nil
}

// addNamed keeps the text of newStatement's argument, a constant.
func (s *sources) addNamed(path, name string, value ast.Expr, info *types.Info) {
	call, ok := value.(*ast.CallExpr)
	if !ok || len(call.Args) != 1 || types.ExprString(call.Fun) != "newStatement" {
		return
	}
	if text := info.Types[call.Args[0]].Value; text != nil {
		s.named[path+"."+name] = constant.StringVal(text)
	}
}

// statement returns a constant: "outbox.purgeSQL" of the package in folder outbox, or the constant
// that it makes a statement with named parameters of (pgx.NamedArgs). Anything with a space is a
// statement itself.
func (s *sources) statement(name string) (string, error) {
	if strings.Contains(name, " ") {
		return name, nil
	}
	folder, constantName, _ := strings.Cut(name, ".")
	p, err := s.Import(modulePath + folder)
	if err != nil {
		return "", err
	}
	if text, ok := s.named[modulePath+name]; ok {
		return text, nil
	}
	c, ok := p.Scope().Lookup(constantName).(*types.Const)
	if !ok || c.Val().Kind() != constant.String {
		return "", fmt.Errorf("%s is no constant with a text", name)
	}
	return constant.StringVal(c.Val()), nil
}
