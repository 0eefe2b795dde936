package source

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Listing is what the go command knows of the packages of the root module.
type Listing struct {
	fset   *token.FileSet
	byFile map[string]*Package  // by absolute name
	byPath map[string]*Package  // by import path
	parsed map[string]*ast.File // files without a mutant
	types  types.Importer
}

// Package is a package of the module, or one that it depends on.
type Package struct {
	ImportPath, Dir, Export string
	GoFiles, Imports        []string
}

// List lists the packages of the module at root. It is not for use by several goroutines at once.
func List(root string) (*Listing, error) {
	cmd := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,Imports", "./...")
	cmd.Dir = root
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, errs.String())
	}
	l := &Listing{
		fset:   token.NewFileSet(),
		byFile: map[string]*Package{},
		byPath: map[string]*Package{},
		parsed: map[string]*ast.File{},
	}
	exports := map[string]string{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		p := &Package{}
		if err := d.Decode(p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		exports[p.ImportPath] = p.Export
		l.byPath[p.ImportPath] = p
		for _, f := range p.GoFiles {
			l.byFile[filepath.Join(p.Dir, f)] = p
		}
	}
	l.types = importer.ForCompiler(l.fset, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("no export data of %s", path)
		}
		return os.Open(exports[path])
	})
	return l, nil
}

// Package returns the package of a file, by its absolute name; nil if it is in no package.
func (l *Listing) Package(file string) *Package { return l.byFile[file] }

// Closure returns directories of the module, and those of the module's packages that they import,
// however indirectly, in order.
func (l *Listing) Closure(dirs ...string) ([]string, error) {
	seen := map[string]bool{}
	left := slices.Clone(dirs)
	for len(left) > 0 {
		dir := left[0]
		left = left[1:]
		if seen[dir] {
			continue
		}
		seen[dir] = true
		p := l.byPath[Module+"/"+dir]
		if p == nil {
			return nil, fmt.Errorf("there is no package %s", dir)
		}
		for _, path := range p.Imports {
			if imported, ours := strings.CutPrefix(path, Module+"/"); ours {
				left = append(left, imported)
			}
		}
	}
	return slices.Sorted(maps.Keys(seen)), nil
}

// Check type-checks a package with the mutant of one file.
func (l *Listing) Check(p *Package, file, mutated string) error {
	var files []*ast.File
	for _, f := range p.GoFiles {
		name := filepath.Join(p.Dir, f)
		parsed := l.parsed[name]
		if name == file || parsed == nil {
			var text any // nil: the file's
			if name == file {
				text = mutated
			}
			var err error
			if parsed, err = parser.ParseFile(l.fset, name, text, parser.SkipObjectResolution); err != nil {
				return err
			}
			if name != file {
				l.parsed[name] = parsed
			}
		}
		files = append(files, parsed)
	}
	_, err := (&types.Config{Importer: l.types}).Check(p.ImportPath, l.fset, files, nil)
	return err
}

// Typed returns a package's files with the types of their expressions.
func (l *Listing) Typed(p *Package) (*token.FileSet, []*ast.File, *types.Info, error) {
	var files []*ast.File
	for _, f := range p.GoFiles {
		parsed, err := parser.ParseFile(l.fset, filepath.Join(p.Dir, f), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, nil, nil, err
		}
		files = append(files, parsed)
	}
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}}
	_, err := (&types.Config{Importer: l.types}).Check(p.ImportPath, l.fset, files, info)
	return l.fset, files, info, err
}

// Fault is an error of the compiler.
type Fault struct {
	File   string
	Offset int
	Text   string
}

// Errors type-checks a package in which some files, by their absolute names, have other texts, or
// are new. It returns all errors.
func (l *Listing) Errors(p *Package, texts map[string]string) (all []Fault) {
	fset := token.NewFileSet()
	var files []*ast.File
	add := func(name string, text any) {
		parsed, err := parser.ParseFile(fset, name, text, parser.SkipObjectResolution)
		if err != nil {
			all = append(all, Fault{File: name, Text: err.Error()})
			return
		}
		files = append(files, parsed)
	}
	for _, f := range p.GoFiles {
		name := filepath.Join(p.Dir, f)
		if _, ok := texts[name]; !ok {
			add(name, nil)
		}
	}
	for name, text := range texts {
		add(name, text)
	}
	config := &types.Config{Importer: l.types, Error: func(err error) {
		if wrong, ok := errors.AsType[types.Error](err); ok {
			at := fset.Position(wrong.Pos)
			all = append(all, Fault{at.Filename, at.Offset, wrong.Msg})
		}
	}}
	_, _ = config.Check(p.ImportPath, fset, files, nil) // the errors are those that it has been told
	return all
}
