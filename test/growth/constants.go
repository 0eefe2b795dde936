package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"path/filepath"
	"regexp"
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

// names returns the names of the constants of all packages of the module that have a text, by the
// text with single spaces.
func (s *sources) names() (map[string]string, error) {
	all := map[string]string{}
	for _, under := range []string{
		"consumer", "dedupe", "idempotency", "internal", "migrations", "ops", "outbox", "queue",
		"seal", "shard", "sqltx", "webhook",
	} {
		err := filepath.WalkDir(filepath.Join(s.root, under), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return err
			}
			if d.Name() == "testdata" {
				return filepath.SkipDir
			}
			folder, err := filepath.Rel(s.root, path)
			if err != nil {
				return err
			}
			return s.nameAll(filepath.ToSlash(folder), all)
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// nameAll adds the constants of the package in a folder, if it has one.
func (s *sources) nameAll(folder string, all map[string]string) error {
	p, err := s.Import(modulePath + folder)
	if _, empty := errors.AsType[*build.NoGoError](err); empty {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range p.Scope().Names() {
		text, err := s.statement(folder + "." + name)
		if err == nil && strings.Contains(text, " ") {
			all[numbered(strings.Join(strings.Fields(text), " "))] = folder + "." + name
		}
	}
	return nil
}

var named = regexp.MustCompile(`@[a-z_]+`)

// numbered gives the parameters numbers in the order in which their names come, as pgx does.
func numbered(text string) string {
	numbers := map[string]int{}
	return named.ReplaceAllStringFunc(text, func(name string) string {
		if numbers[name] == 0 {
			numbers[name] = len(numbers) + 1
		}
		return fmt.Sprintf("$%d", numbers[name])
	})
}
