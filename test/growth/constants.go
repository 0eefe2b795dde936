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
}

func newSources(root string) *sources {
	return &sources{root: root, fset: token.NewFileSet(), known: map[string]*types.Package{}}
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
	p, _ := cfg.Check(path, s.fset, files, nil)
	s.known[path] = p
	return p, nil
}

// statement returns a constant: "outbox.purgeSQL" of the package in folder outbox. Anything with a
// space is a statement itself.
func (s *sources) statement(name string) (string, error) {
	if strings.Contains(name, " ") {
		return name, nil
	}
	folder, constantName, _ := strings.Cut(name, ".")
	p, err := s.Import(modulePath + folder)
	if err != nil {
		return "", err
	}
	c, ok := p.Scope().Lookup(constantName).(*types.Const)
	if !ok || c.Val().Kind() != constant.String {
		return "", fmt.Errorf("%s is no constant with a text", name)
	}
	return constant.StringVal(c.Val()), nil
}
