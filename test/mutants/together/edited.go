package together

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// edited is a file with its changes.
type edited struct {
	p    *pkg
	name string // from the root
	text string
	done []change
	no   []change // those whose copy is no Go

	edits  []edit
	behind []copied // declarations that are added to the end
}

// edit replaces bytes of the file.
type edit struct {
	from, to int
	with     string
}

// copied is a declaration that a change has, or 0 for none, and where it stands in the new text.
type copied struct {
	number   int
	text     string
	from, to int
}

// newEdited returns nil if nothing of a file is changed.
func newEdited(p *pkg, f *ast.File, name string, changes []change, vars map[string]bool) (*edited, error) {
	text, err := os.ReadFile(filepath.Join(p.root, name))
	if err != nil {
		return nil, err
	}
	e := &edited{p: p, name: name, text: string(text)}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Body != nil {
				e.function(d, e.within(changes, d.Body))
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if spec, ok := s.(*ast.ValueSpec); ok {
					e.value(d, spec, changes, vars)
				}
			}
		}
	}
	if len(e.edits) == 0 {
		return nil, nil
	}
	e.write()
	return e, nil
}

func (e *edited) offset(p token.Pos) int { return e.p.files.Position(p).Offset }

func (e *edited) source(n ast.Node) string { return e.text[e.offset(n.Pos()):e.offset(n.End())] }

func (e *edited) within(changes []change, n ast.Node) (some []change) {
	from := e.offset(n.Pos())
	to := e.offset(n.End())
	for _, c := range changes {
		if from <= c.From && c.To <= to {
			some = append(some, c)
		}
	}
	return some
}

// function begins a function with the choice of a copy, and adds the copies.
func (e *edited) function(d *ast.FuncDecl, changes []change) {
	if len(changes) == 0 || needsItsCaller(d.Body) {
		return
	}
	call := ""
	receiver := ""
	if d.Recv != nil {
		list, args := e.parameters(d.Recv, "receiverOf")
		receiver = "(" + list + ") "
		call = args[0] + "."
		e.edits = append(e.edits, edit{e.offset(d.Recv.Pos()), e.offset(d.Recv.End()), "(" + list + ")"})
	}
	list, args := e.parameters(d.Type.Params, "argOf")
	e.edits = append(e.edits, edit{e.offset(d.Type.Params.Pos()), e.offset(d.Type.Params.End()), "(" + list + ")"})
	generic := ""
	given := ""
	if d.Type.TypeParams != nil {
		generic = e.source(d.Type.TypeParams)
		given = "[" + join(names(d.Type.TypeParams)) + "]"
	}
	results := ""
	if d.Type.Results != nil {
		results = " " + e.source(d.Type.Results)
	}
	from := e.offset(d.Body.Pos())
	to := e.offset(d.Body.End())
	cases := ""
	for _, c := range changes {
		name := fmt.Sprintf("%sChange%d", d.Name.Name, c.number)
		text := fmt.Sprintf("func %s%s%s(%s)%s %s", receiver, name, generic, list, results, apply(e.text, from, to, c))
		if _, err := parser.ParseFile(token.NewFileSet(), "", "package p\n"+text, 0); err != nil {
			e.no = append(e.no, c)
			continue
		}
		e.add(text, c)
		made := fmt.Sprintf("%s%s%s(%s)", call, name, given, join(args))
		if results == "" {
			cases += fmt.Sprintf(" case %d: %s; return;", c.number, made)
		} else {
			cases += fmt.Sprintf(" case %d: return %s;", c.number, made)
		}
	}
	e.edits = append(e.edits, edit{from + 1, from + 1, " switch " + chosen + " {" + cases + "}; "})
}

func (e *edited) add(text string, c change) {
	e.behind = append(e.behind, copied{number: c.number, text: text})
	e.done = append(e.done, c)
}

// parameters returns a list in which each parameter has a name, and those names as arguments.
func (e *edited) parameters(list *ast.FieldList, prefix string) (text string, args []string) {
	var parts []string
	add := func(name string, of ast.Expr) {
		if name == "_" {
			name = fmt.Sprintf("%s%d", prefix, len(args))
		}
		parts = append(parts, name+" "+e.source(of))
		if _, ok := of.(*ast.Ellipsis); ok {
			name += "..."
		}
		args = append(args, name)
	}
	for _, f := range list.List {
		for _, n := range f.Names {
			add(n.Name, f.Type)
		}
		if len(f.Names) == 0 {
			add("_", f.Type)
		}
	}
	return join(parts), args
}

func names(list *ast.FieldList) (all []string) {
	for _, f := range list.List {
		for _, n := range f.Names {
			all = append(all, n.Name)
		}
	}
	return all
}

// needsItsCaller reports whether a function only works if its caller is who it was: it recovers, or
// asks for its caller.
func needsItsCaller(body *ast.BlockStmt) bool {
	found := false
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.Ident:
			if n.Name == "recover" || n.Name == "Caller" || n.Name == "Callers" {
				found = true
			}
		}
		return !found
	})
	return found
}

// value makes a choice of a string's value. A constant becomes a variable.
func (e *edited) value(d *ast.GenDecl, spec *ast.ValueSpec, changes []change, vars map[string]bool) {
	constant := d.Tok == token.CONST
	if len(spec.Names) != 1 || len(spec.Values) != 1 {
		return
	}
	if constant && !vars[spec.Names[0].Name] {
		return
	}
	value := spec.Values[0]
	own := e.within(changes, value)
	if !constant && (len(own) == 0 || !e.p.isString(value)) {
		return
	}
	from := e.offset(value.Pos())
	to := e.offset(value.End())
	name := spec.Names[0].Name
	cases := ""
	for _, c := range own {
		made := fmt.Sprintf("%sChange%d", name, c.number)
		e.add(fmt.Sprintf("var %s string = %s", made, apply(e.text, from, to, c)), c)
		cases += fmt.Sprintf(" case %d: return %s;", c.number, made)
	}
	choice := fmt.Sprintf("func() string { switch %s {%s}; return %s }()", chosen, cases, e.text[from:to])
	if !constant {
		e.edits = append(e.edits, edit{from, to, choice})
		return
	}
	e.behind = append(e.behind, copied{text: fmt.Sprintf("var %s string = %s", name, choice)})
	e.edits = append(e.edits, edit{e.offset(spec.Pos()), e.offset(spec.End()), `_ = ""`})
}

// write makes the new text, and notes where each copy stands.
func (e *edited) write() {
	slices.SortStableFunc(e.edits, func(a, b edit) int { return a.from - b.from })
	var text strings.Builder
	end := 0
	for _, change := range e.edits {
		text.WriteString(e.text[end:change.from] + change.with)
		end = change.to
	}
	text.WriteString(e.text[end:] + "\n")
	for i := range e.behind {
		c := &e.behind[i]
		c.from = text.Len()
		text.WriteString(c.text + "\n\n")
		c.to = text.Len()
	}
	e.text = text.String()
}

// at returns the change whose copy has a byte of the new text, or 0.
func (e *edited) at(offset int) int {
	for _, c := range e.behind {
		if c.from <= offset && offset < c.to {
			return c.number
		}
	}
	return 0
}
