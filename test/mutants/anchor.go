package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"

	"github.com/onlyonce/onlyonce/test/mutants/source"
)

// code is the source that mutants are of. Each directory is read once.
type code struct {
	root string
	dirs map[string]directory
}

// directory holds what each name declares: one place in most cases. Functions named init, overloads
// in SQL and DO blocks have several.
type directory map[string][]place

// place is a declaration.
type place struct {
	file    string // from the root
	content string // the file's
	// texts are the declaration's tokens, and the words of each of its raw string literals, which
	// may hold SQL. Of the schema they are one text of words.
	texts []text
}

type text struct {
	sql     bool
	lexemes []source.Lexeme
}

// mutate returns the file that a mutant changes, from the root, and its text then.
func (c *code) mutate(m mutant) (file, mutated string, err error) {
	places, err := c.declared(m.in, m.decl)
	if err != nil {
		return "", "", err
	}
	goOld := source.GoFragment(m.old)
	sqlOld := source.SQL(m.old, 0)
	n := 0
	for _, p := range places {
		for _, t := range p.texts {
			old := goOld
			if t.sql {
				old = sqlOld
			}
			for _, found := range source.Find(t.lexemes, old) {
				n++
				file = p.file
				mutated = p.content[:found[0].From] + m.new + p.content[found[len(found)-1].To:]
			}
		}
	}
	if n != 1 {
		return "", "", fmt.Errorf("%s: %s: %q stands there %d times, must be once", m.in, m.decl, m.old, n)
	}
	return file, mutated, nil
}

// declared returns the places where a name is declared.
func (c *code) declared(dir, name string) ([]place, error) {
	d := c.dirs[dir]
	if d == nil {
		var err error
		if d, err = readDirectory(c.root, dir); err != nil {
			return nil, err
		}
		if c.dirs == nil {
			c.dirs = map[string]directory{}
		}
		c.dirs[dir] = d
	}
	if d[name] == nil {
		return nil, fmt.Errorf("%s: nothing is declared there under the name %s", dir, name)
	}
	return d[name], nil
}

func readDirectory(root, dir string) (directory, error) {
	entries, err := os.ReadDir(filepath.Join(root, dir))
	if err != nil {
		return nil, err
	}
	d := directory{}
	for _, e := range entries {
		file := filepath.Join(dir, e.Name())
		isGo := strings.HasSuffix(file, ".go") && !strings.HasSuffix(file, "_test.go")
		if !isGo && !strings.HasSuffix(file, ".sql") {
			continue
		}
		content, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			return nil, err
		}
		if !isGo {
			d.readSQL(file, string(content))
		} else if err := d.readGo(file, string(content)); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// readGo finds functions, for example New, entry.size and (*engine).run, and what is declared
// outside of them.
func (d directory) readGo(file, content string) error {
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, file, content, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	all := source.Go(content)
	offset := func(p token.Pos) int { return files.Position(p).Offset }
	add := func(name string, n ast.Node) {
		p := place{file: file, content: content, texts: []text{{lexemes: source.Within(all, offset(n.Pos()), offset(n.End()))}}}
		for _, l := range p.texts[0].lexemes {
			if l.Text[0] == '`' {
				p.texts = append(p.texts, text{sql: true, lexemes: source.SQL(l.Text[1:len(l.Text)-1], l.From+1)})
			}
		}
		d[name] = append(d[name], p)
	}
	for _, decl := range parsed.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			add(source.Receiver(decl)+decl.Name.Name, decl)
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					add(spec.Name.Name, spec)
				case *ast.ValueSpec:
					for _, name := range spec.Names {
						add(name.Name, spec)
					}
				}
			}
		}
	}
	return nil
}

// readSQL finds what a chapter creates as the package source finds it.
func (d directory) readSQL(file, content string) {
	words := source.SQL(content, 0)
	for _, s := range source.Statements(content) {
		within := source.Within(words, s.From, s.To)
		d[s.Name] = append(d[s.Name], place{file: file, content: content, texts: []text{{sql: true, lexemes: within}}})
	}
}
