package rules

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// sqlVerdict says what a statement does.
type sqlVerdict int

const (
	writes  sqlVerdict = iota
	unknown            // it is put together as the program runs
	reads
)

// judge says what the statement of a call does. A call without one, for example Begin, writes.
func (p *program) judge(c *ssa.CallCommon, at *frame) sqlVerdict {
	for _, arg := range c.Args {
		basic, ok := arg.Type().Underlying().(*types.Basic)
		if !ok || basic.Kind() != types.String {
			continue
		}
		texts := p.texts(arg, at, 0)
		if len(texts) == 0 {
			return unknown
		}
		verdict := reads
		for _, text := range texts {
			verdict = min(verdict, statementDoes(text))
		}
		return verdict
	}
	return writes
}

// hole stands for a part of a statement that is not known. It parses as a name and as a value.
const hole = "x"

// texts returns what a string may be: a constant, a variable that is set once, an embedded file, or
// these put together by + or fmt.Sprintf, with holes. It returns nothing if not a part is known.
func (p *program) texts(v ssa.Value, at *frame, deep int) []string {
	if deep > maxDepth {
		return nil
	}
	switch v := v.(type) {
	case *ssa.Const:
		if v.Value != nil && v.Value.Kind() == constant.String {
			return []string{constant.StringVal(v.Value)}
		}
	case *ssa.ChangeType:
		return p.texts(v.X, at, deep+1)
	case *ssa.Convert:
		return p.texts(v.X, at, deep+1)
	case *ssa.BinOp:
		if v.Op == token.ADD {
			return joined(p.texts(v.X, at, deep+1), p.texts(v.Y, at, deep+1))
		}
	case *ssa.Phi:
		return p.each(v.Edges, at, deep)
	case *ssa.Call:
		if n := nameOf(&v.Call); n == (name{"fmt", "", "Sprintf"}) {
			return formatted(p.texts(v.Call.Args[0], at, deep+1))
		}
	case *ssa.UnOp:
		if g, ok := v.X.(*ssa.Global); ok {
			if text, is := p.embeds[g.Name()]; is && g.Pkg == p.pkg {
				return []string{text}
			}
			return p.each(p.globals[g], nil, deep)
		}
		if only := stored(v); only != v {
			return p.texts(only, at, deep+1)
		}
	case *ssa.Parameter:
		for f := at; f != nil; f = f.up {
			for i, param := range v.Parent().Params {
				if f.fn == v.Parent() && param == v && i < len(f.args) {
					return p.texts(f.args[i], f.argAt(i), deep+1)
				}
			}
		}
	}
	return nil
}

// each returns the texts of all of these values, or nothing if one of them is not known.
func (p *program) each(vs []ssa.Value, at *frame, deep int) (all []string) {
	for _, v := range vs {
		texts := p.texts(v, at, deep+1)
		if len(texts) == 0 {
			return nil
		}
		all = append(all, texts...)
	}
	return all
}

// joined are all texts that begin with one of a and end with one of b. One of the two may be a
// hole.
func joined(a, b []string) (all []string) {
	if len(a) == 0 || len(a)*len(b) > 16 {
		return nil // without its beginning a statement is not known
	}
	if len(b) == 0 {
		b = []string{hole}
	}
	for _, x := range a {
		for _, y := range b {
			all = append(all, x+y)
		}
	}
	return all
}

var verb = regexp.MustCompile(`%(?:\[\d+\])?[-+# 0]*\d*(?:\.\d+)?[a-zA-Z%]`)

// formatted fills the verbs of formats.
func formatted(formats []string) (all []string) {
	for _, f := range formats {
		all = append(all, verb.ReplaceAllStringFunc(f, func(v string) string {
			switch v[len(v)-1] {
			case '%':
				return "%"
			case 'd', 'f', 'g', 'x':
				return "1"
			case 'q':
				return `"` + hole + `"`
			}
			return hole
		}))
	}
	return all
}

// embed notes what a declaration embeds into a string.
func (p *program) embed(decl ast.Decl, dir string) {
	d, ok := decl.(*ast.GenDecl)
	if !ok || d.Tok != token.VAR {
		return
	}
	for _, spec := range d.Specs {
		v, ok := spec.(*ast.ValueSpec)
		if !ok || len(v.Names) != 1 {
			continue
		}
		for _, group := range []*ast.CommentGroup{d.Doc, v.Doc} {
			if group == nil {
				continue
			}
			for _, c := range group.List {
				path, is := strings.CutPrefix(c.Text, "//go:embed ")
				if !is {
					continue
				}
				text, err := os.ReadFile(filepath.Join(dir, strings.Trim(strings.TrimSpace(path), `"`)))
				if err == nil {
					p.embeds[v.Names[0].Name] = string(text)
				}
			}
		}
	}
}
