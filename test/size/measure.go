package main

import (
	"bytes"
	"errors"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
)

const module = "github.com/onlyonce/onlyonce/"

// size is what a directory measures, or several together.
type size [10]int

const (
	lines       = iota // of Go without tests
	tests              // lines of _test.go files
	names              // exported names at package level, of packages that users can import
	fields             // exported fields of those packages' exported types
	long               // functions above 80 lines, without tests
	backwards          // pairs of files whose reference runs against the order
	references         // pairs of files of a package in which one refers to the other
	markdown           // bytes
	sql                // lines
	files              // of Go without tests
	longestFunc = 80
)

// measure returns the size of each directory of the files, which are named by their path.
func measure(src map[string][]byte) (map[string]*size, error) {
	sizes := map[string]*size{}
	p := &packages{
		fset:  token.NewFileSet(),
		files: map[string][]*ast.File{},
		done:  map[string]*types.Package{},
		uses:  map[string]map[*ast.Ident]types.Object{},
	}
	for _, name := range slices.Sorted(maps.Keys(src)) {
		dir := path.Dir(name)
		n := bytes.Count(src[name], []byte("\n"))
		s := sizes[dir]
		if s == nil {
			s = &size{}
			sizes[dir] = s
		}
		switch {
		case strings.HasSuffix(name, ".md"):
			s[markdown] += len(src[name])
		case strings.HasSuffix(name, ".sql"):
			s[sql] += n
		case strings.HasSuffix(name, "_test.go"):
			s[tests] += n
		case strings.HasSuffix(name, ".go"):
			s[files]++
			s[lines] += n
			if err := p.parse(dir, name, src[name], s); err != nil {
				return nil, err
			}
		}
	}
	for dir, s := range sizes {
		edges := p.edges(dir)
		s[references], s[backwards] = len(edges), against(len(p.files[dir]), edges)
	}
	return sizes, nil
}

// packages type-checks this module's packages, each once. Packages of others are left out: what the
// checker then does not know is not a reference to a file of ours.
type packages struct {
	fset  *token.FileSet
	files map[string][]*ast.File // by directory
	done  map[string]*types.Package
	uses  map[string]map[*ast.Ident]types.Object
}

// parse reads a file and counts what its syntax shows. It keeps the file for edges if it belongs to
// a build for Linux without tags, so that each name has one declaration.
func (p *packages) parse(dir, name string, src []byte, s *size) error {
	f, err := parser.ParseFile(p.fset, name, src, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && p.fset.Position(fn.End()).Line-p.fset.Position(fn.Pos()).Line >= longestFunc {
			s[long]++
		}
	}
	if public(dir) && f.Name.Name != "main" {
		surface(f, s)
	}
	c := build.Default
	c.GOOS = "linux"
	c.GOARCH = "amd64"
	c.BuildTags = nil
	c.OpenFile = func(string) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(src)), nil }
	built, err := c.MatchFile(dir, path.Base(name))
	if built {
		p.files[dir] = append(p.files[dir], f)
	}
	return err
}

// surface counts a file's exported names, and the exported fields of its exported types, also those
// of structs within them.
func surface(f *ast.File, s *size) {
	count := func(kind int, ids ...*ast.Ident) {
		for _, id := range ids {
			if id.IsExported() {
				s[kind]++
			}
		}
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				count(names, d.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.ValueSpec:
					count(names, spec.Names...)
				case *ast.TypeSpec:
					count(names, spec.Name)
					ast.Inspect(spec.Type, func(n ast.Node) bool {
						if field, ok := n.(*ast.StructType); ok && spec.Name.IsExported() {
							for _, f := range field.Fields.List {
								count(fields, f.Names...)
							}
						}
						return true
					})
				}
			}
		}
	}
}

// Import implements types.Importer.
func (p *packages) Import(importPath string) (*types.Package, error) {
	dir, ours := strings.CutPrefix(importPath, module)
	if !ours || len(p.files[dir]) == 0 {
		return nil, errors.New("left out")
	}
	if p.done[dir] == nil {
		info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
		conf := types.Config{Importer: p, Error: func(error) {}} // errors come from what is left out
		p.done[dir], _ = conf.Check(importPath, p.fset, p.files[dir], info)
		p.uses[dir] = info.Uses
	}
	return p.done[dir], nil
}

// edges returns the pairs of files of a directory in which the first uses a package-level name or a
// method that the second declares, each pair once.
func (p *packages) edges(dir string) (edges []edge) {
	pkg, err := p.Import(module + dir)
	if err != nil {
		return nil
	}
	index := map[string]int{}
	for i, f := range p.files[dir] {
		index[p.fset.Position(f.Pos()).Filename] = i
	}
	for id, obj := range p.uses[dir] {
		fn, isFunc := obj.(*types.Func)
		method := isFunc && fn.Signature().Recv() != nil
		if obj.Pkg() != pkg || !method && obj.Parent() != pkg.Scope() {
			continue
		}
		e := edge{index[p.fset.Position(id.Pos()).Filename], index[p.fset.Position(obj.Pos()).Filename]}
		if e.from != e.to {
			edges = append(edges, e)
		}
	}
	slices.SortFunc(edges, func(a, b edge) int { return (a.from-b.from)*len(index) + a.to - b.to })
	return slices.Compact(edges)
}
