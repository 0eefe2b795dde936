package main

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
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// A mutant that does not compile takes nothing out: its tests fail for another reason than the
// rule. Type-checking finds that in a minute for all rows. Packages of nested modules are left out.
func TestEachMutantCompiles(t *testing.T) {
	if testing.Short() {
		t.Skip("type-checks every package that has a mutant: without -short")
	}
	t.Parallel()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	l, err := listed(root)
	if err != nil {
		t.Fatal(err)
	}
	tree := &code{root: root}
	checked := 0
	for _, m := range table {
		file, mutated, err := tree.mutate(m)
		if err != nil {
			t.Errorf("%s: %v", m.rule, err)
			continue
		}
		file = filepath.Join(root, file)
		p := l.byFile[file]
		if p == nil {
			continue
		}
		checked++
		if err := l.check(p, file, mutated); err != nil {
			t.Errorf("%s (%s): %v", m.rule, m.in, err)
		}
	}
	if checked < len(table)/2 {
		t.Errorf("%d of %d rows were found in a package", checked, len(table))
	}
}

// listing is what the go command knows of the packages of the root module.
type listing struct {
	fset   *token.FileSet
	byFile map[string]*listedPackage // by absolute name
	parsed map[string]*ast.File      // files without a mutant
	types  types.Importer
}

type listedPackage struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
}

func listed(root string) (*listing, error) {
	cmd := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles", "./...")
	cmd.Dir = root
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, errs.String())
	}
	l := &listing{fset: token.NewFileSet(), byFile: map[string]*listedPackage{}, parsed: map[string]*ast.File{}}
	exports := map[string]string{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		p := &listedPackage{}
		if err := d.Decode(p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		exports[p.ImportPath] = p.Export
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

// check type-checks a package with the mutant of one file.
func (l *listing) check(p *listedPackage, file, mutated string) error {
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
