package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
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
	file   string // from the root
	source string // the file's
	// texts are the declaration's tokens, and the words of each of its raw string literals, which
	// may hold SQL. Of the schema they are one text of words.
	texts []text
}

type text struct {
	sql     bool
	lexemes []lexeme
}

// mutate returns the file that a mutant changes, from the root, and its text then.
func (c *code) mutate(m mutant) (file, mutated string, err error) {
	places, err := c.declared(m.in, m.decl)
	if err != nil {
		return "", "", err
	}
	goOld, sqlOld := goFragment(m.old), sqlLexemes(m.old, 0)
	n := 0
	for _, p := range places {
		for _, t := range p.texts {
			old := goOld
			if t.sql {
				old = sqlOld
			}
			for _, found := range find(t.lexemes, old) {
				n++
				file = p.file
				mutated = p.source[:found[0].from] + m.new + p.source[found[len(found)-1].to:]
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
		source, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			return nil, err
		}
		if !isGo {
			d.readSQL(file, string(source))
		} else if err := d.readGo(file, string(source)); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// readGo finds functions, for example New, entry.size and (*engine).run, and what is declared
// outside of them.
func (d directory) readGo(file, source string) error {
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, file, source, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	all := goLexemes(source)
	offset := func(p token.Pos) int { return files.Position(p).Offset }
	add := func(name string, n ast.Node) {
		p := place{file: file, source: source, texts: []text{{lexemes: within(all, offset(n.Pos()), offset(n.End()))}}}
		for _, l := range p.texts[0].lexemes {
			if l.text[0] == '`' {
				p.texts = append(p.texts, text{sql: true, lexemes: sqlLexemes(l.text[1:len(l.text)-1], l.from+1)})
			}
		}
		d[name] = append(d[name], p)
	}
	for _, decl := range parsed.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			add(receiver(decl)+decl.Name.Name, decl)
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

// receiver returns what a method's name begins with.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	t := f.Recv.List[0].Type
	star, isPointer := t.(*ast.StarExpr)
	if isPointer {
		t = star.X
	}
	switch generic := t.(type) {
	case *ast.IndexExpr:
		t = generic.X
	case *ast.IndexListExpr:
		t = generic.X
	}
	if isPointer {
		return "(*" + t.(*ast.Ident).Name + ")."
	}
	return t.(*ast.Ident).Name + "."
}

var (
	created = regexp.MustCompile(`^create (?:or replace |constraint |unique )*(\w+ [\w.]+)`)
	onTable = regexp.MustCompile(` on [\w.]+`)
)

// readSQL finds what a chapter creates, for example `function onlyonce.fence` and `trigger sealed
// on onlyonce.progress`. A DO block has the name do. Templates of functions within it are found by
// their names too, for example `function onlyonce.claim_RING`.
func (d directory) readSQL(file, source string) {
	words := sqlLexemes(source, 0)
	for _, s := range statements(source, 0, len(source)) {
		head := source[s.from:s.to]
		name := ""
		switch found := created.FindStringSubmatch(head); {
		case strings.HasPrefix(head, "do "):
			name = "do"
		case found == nil:
			continue
		case strings.HasPrefix(found[1], "trigger "):
			name = found[1] + onTable.FindString(head)
		default:
			name = found[1]
		}
		d[name] = append(d[name], place{file: file, source: source, texts: []text{{sql: true, lexemes: within(words, s.from, s.to)}}})
	}
}

// span is a part of a source, in bytes.
type span struct{ from, to int }

// dollars begins or ends a string between dollar signs.
var dollars = regexp.MustCompile(`^\$\w*\$`)

// statements returns the SQL statements of a part of a source, and the statements that stand in
// strings of a DO block.
func statements(source string, from, to int) (all []span) {
	begin := -1 // of the statement, -1: none
	for at := from; at < to; {
		rest := source[at:to]
		length := 1
		switch tag := dollars.FindString(rest); {
		case strings.HasPrefix(rest, "--"):
			line, _, _ := strings.Cut(rest, "\n")
			at += len(line)
			continue
		case strings.TrimLeft(rest[:1], " \n") == "":
			at++
			continue
		case rest[0] == '\'':
			length += strings.Index(rest[1:], "'") + 1
		case tag != "":
			inner := strings.Index(rest[len(tag):], tag)
			if begin >= 0 && strings.HasPrefix(source[begin:], "do ") {
				body := span{at + len(tag), at + len(tag) + inner}
				all = append(all, templates(source, body)...)
			}
			length = inner + 2*len(tag)
		}
		if begin < 0 {
			begin = at
		}
		at += length
		if rest[0] == ';' || at >= to {
			all = append(all, span{begin, at})
			begin = -1
		}
	}
	return all
}

// templates returns the functions that strings within a DO block's body create.
func templates(source string, body span) (all []span) {
	for at := body.from; at < body.to; at++ {
		tag := dollars.FindString(source[at:body.to])
		if tag == "" {
			continue
		}
		at += len(tag)
		inner := strings.Index(source[at:body.to], tag)
		if inner < 0 {
			break
		}
		all = append(all, statements(source, at, at+inner)...)
		at += inner + len(tag) - 1
	}
	return slices.DeleteFunc(all, func(s span) bool { return !created.MatchString(source[s.from:s.to]) })
}
