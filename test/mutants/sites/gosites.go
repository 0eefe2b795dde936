package sites

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/onlyonce/onlyonce/test/mutants/source"
)

// goSites returns the sites of a package's Go files.
func goSites(root string, list *source.Listing, dir string) ([]Site, error) {
	names, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	if err != nil {
		return nil, err
	}
	var pkg *source.Package
	for _, name := range names {
		pkg = list.Package(name)
		if pkg != nil {
			break
		}
	}
	if pkg == nil {
		return nil, nil
	}
	files, parsed, info, err := list.Typed(pkg)
	if err != nil {
		return nil, err
	}
	var all []Site
	for _, f := range parsed {
		name := files.Position(f.Pos()).Filename
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return nil, err
		}
		m := &goMutator{files: files, info: info, text: string(text), file: rel}
		for _, d := range f.Decls {
			m.declaration(d)
		}
		all = append(all, m.sites...)
	}
	return all, nil
}

// goMutator collects the sites of one file.
type goMutator struct {
	files *token.FileSet
	info  *types.Info
	text  string
	file  string
	decl  string
	words bool // what is added now changes only words
	sites []Site
}

func (m *goMutator) offset(p token.Pos) int { return m.files.Position(p).Offset }

func (m *goMutator) source(n ast.Node) string { return m.text[m.offset(n.Pos()):m.offset(n.End())] }

// add adds the site that replaces the text between two positions.
func (m *goMutator) add(operator string, from, to token.Pos, with string) {
	begin := m.offset(from)
	end := m.offset(to)
	m.sites = append(m.sites, Site{
		File: m.file, From: begin, To: end, New: with,
		Operator: operator, Decl: m.decl, Line: m.files.Position(from).Line, Old: m.text[begin:end], Moot: m.words,
	})
}

func (m *goMutator) declaration(d ast.Decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Body == nil {
			return
		}
		m.decl = source.Receiver(d) + d.Name.Name
		m.body(d.Type, d.Body)
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			values, ok := spec.(*ast.ValueSpec)
			if !ok {
				continue
			}
			m.decl = values.Names[0].Name
			for _, v := range values.Values {
				m.expressions(v)
			}
		}
	}
}

// body collects the sites of a function.
func (m *goMutator) body(of *ast.FuncType, body *ast.BlockStmt) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			m.body(n.Type, n.Body)
			return false
		case *ast.BlockStmt:
			m.statements(of, n.List)
		case *ast.CaseClause:
			m.words = m.areText(n.Body)
			m.add("drop case", n.Pos(), n.End(), "")
			m.words = false
			m.statements(of, n.Body)
		case *ast.CommClause:
			m.add("drop case", n.Pos(), n.End(), "")
			m.statements(of, n.Body)
		case *ast.IfStmt:
			m.condition(n)
		case *ast.ForStmt:
			if n.Cond != nil {
				m.add("negate condition", n.Cond.Pos(), n.Cond.End(), "!("+m.source(n.Cond)+")")
			}
		case ast.Expr:
			m.expression(n)
		}
		return true
	})
}

func (m *goMutator) expressions(n ast.Node) {
	ast.Inspect(n, func(n ast.Node) bool {
		if f, ok := n.(*ast.FuncLit); ok {
			m.body(f.Type, f.Body)
			return false
		}
		if e, ok := n.(ast.Expr); ok {
			m.expression(e)
		}
		return true
	})
}

func (m *goMutator) condition(n *ast.IfStmt) {
	m.words = n.Else == nil && m.areText(n.Body.List)
	defer func() { m.words = false }()
	cond := m.source(n.Cond)
	m.add("negate condition", n.Cond.Pos(), n.Cond.End(), "!("+cond+")")
	m.add("drop branch", n.Cond.Pos(), n.Cond.End(), "("+cond+") && false")
	m.add("always branch", n.Cond.Pos(), n.Cond.End(), "("+cond+") || true")
	if n.Else != nil {
		m.add("drop else", n.Body.End(), n.Else.End(), "")
	}
}

// statements drops each statement, and returns early behind each.
func (m *goMutator) statements(of *ast.FuncType, list []ast.Stmt) {
	for i, s := range list {
		switch s := s.(type) {
		case *ast.ExprStmt:
			if call, ok := s.X.(*ast.CallExpr); !ok || !m.isText(call) {
				m.add("drop statement", s.Pos(), s.End(), "")
			}
		case *ast.SendStmt, *ast.IncDecStmt, *ast.GoStmt:
			m.add("drop statement", s.Pos(), s.End(), "")
		case *ast.DeferStmt:
			m.add("drop defer", s.Pos(), s.End(), "")
		case *ast.AssignStmt:
			m.assignment(s)
		case *ast.BranchStmt:
			if s.Tok != token.FALLTHROUGH {
				m.add("drop "+s.Tok.String(), s.Pos(), s.End(), "")
			}
		case *ast.ReturnStmt:
			m.returned(of, s)
		}
		if of.Results == nil {
			if _, last := s.(*ast.ReturnStmt); !last {
				m.words = m.areText(list[i:])
				m.add("return early", s.Pos(), s.Pos(), "if 0 == 0 { return }; ")
				m.words = false
			}
		}
	}
}

func (m *goMutator) assignment(s *ast.AssignStmt) {
	if s.Tok == token.DEFINE {
		return
	}
	m.add("drop statement", s.Pos(), s.End(), "")
	if len(s.Lhs) != 1 {
		return
	}
	others := map[token.Token]string{token.ADD_ASSIGN: "-=", token.SUB_ASSIGN: "+=", token.OR_ASSIGN: "="}
	if other := others[s.Tok]; other != "" {
		m.add("change assignment", s.TokPos, s.TokPos+token.Pos(len(s.Tok.String())), other)
	}
}

// returned returns no error, or the opposite.
func (m *goMutator) returned(of *ast.FuncType, s *ast.ReturnStmt) {
	if len(s.Results) == 0 {
		if of.Results == nil {
			m.add("drop return", s.Pos(), s.End(), "")
		}
		return
	}
	last := s.Results[len(s.Results)-1]
	t := m.info.Types[last]
	if t.IsNil() {
		return
	}
	if t.Type != nil && t.Type.String() == "error" && len(s.Results) == of.Results.NumFields() {
		m.add("return no error", last.Pos(), last.End(), "nil")
	}
	for _, r := range s.Results {
		switch m.source(r) {
		case "true":
			m.add("return the opposite", r.Pos(), r.End(), "false")
		case "false":
			m.add("return the opposite", r.Pos(), r.End(), "true")
		}
	}
}

// others are operators beside an operator, and what makes a condition its opposite.
var (
	shifted = map[token.Token]string{token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">"}
	turned  = map[token.Token]string{token.EQL: "!=", token.NEQ: "==", token.LSS: ">=", token.GTR: "<="}
	sums    = map[token.Token]string{token.ADD: "-", token.SUB: "+"}
)

func (m *goMutator) expression(e ast.Expr) {
	switch e := e.(type) {
	case *ast.BinaryExpr:
		m.binary(e)
	case *ast.CallExpr:
		m.call(e)
	case *ast.UnaryExpr:
		if e.Op == token.NOT {
			m.add("drop not", e.Pos(), e.End(), m.source(e.X))
		}
	case *ast.CompositeLit:
		m.literal(e)
	case *ast.SliceExpr:
		m.slice(e)
	case *ast.BasicLit:
		m.statement(e)
	}
}

func (m *goMutator) binary(e *ast.BinaryExpr) {
	end := e.OpPos + token.Pos(len(e.Op.String()))
	switch e.Op {
	case token.LAND, token.LOR:
		m.add("drop operand", e.Pos(), e.End(), m.source(e.X))
		m.add("drop operand", e.Pos(), e.End(), m.source(e.Y))
	case token.LSS, token.LEQ, token.GTR, token.GEQ:
		m.add("shift bound", e.OpPos, end, shifted[e.Op])
	case token.ADD, token.SUB:
		if t := m.info.Types[e.X].Type; t == nil || strings.Contains(t.String(), "string") || m.info.Types[e].Value != nil {
			return
		}
		m.add("change sum", e.OpPos, end, sums[e.Op])
		if m.source(e.Y) == "1" {
			m.add("drop one", e.Pos(), e.End(), m.source(e.X))
		}
	}
	if with := turned[e.Op]; with != "" {
		m.add("turn comparison", e.OpPos, end, with)
	}
}

// copies are the functions whose result is a copy of their first argument.
var copies = map[string]bool{"slices.Clone": true, "maps.Clone": true, "bytes.Clone": true, "strings.Clone": true}

func (m *goMutator) call(e *ast.CallExpr) {
	name := m.source(e.Fun)
	if copies[name] {
		m.add("alias for a copy", e.Pos(), e.End(), m.source(e.Args[0]))
	}
	if (name == "min" || name == "max") && len(e.Args) == 2 {
		m.add("drop cap", e.Pos(), e.End(), m.source(e.Args[0]))
		m.add("drop cap", e.Pos(), e.End(), m.source(e.Args[1]))
	}
	m.unwrap(e)
	if m.isText(e) || name == "min" || name == "max" {
		return
	}
	for i := range len(e.Args) - 1 {
		a := e.Args[i]
		b := e.Args[i+1]
		left := m.info.Types[a]
		right := m.info.Types[b]
		known := left.Type != nil && right.Type != nil
		if !known || !types.Identical(left.Type, right.Type) || m.source(a) == m.source(b) {
			continue
		}
		if left.Value != nil && right.Value != nil { // two constants, for example a log's key and value
			continue
		}
		if isSentence(left.Value) || isSentence(right.Value) { // go vet sees a format that is no constant
			continue
		}
		between := m.text[m.offset(a.End()):m.offset(b.Pos())]
		m.add("swap arguments", a.Pos(), b.End(), m.source(b)+between+m.source(a))
	}
}

// isSentence reports whether a value is a constant of several words.
func isSentence(v constant.Value) bool {
	return v != nil && v.Kind() == constant.String && strings.Contains(constant.StringVal(v), " ")
}

// levels are the methods of a logger.
var levels = map[string]bool{"Debug": true, "Info": true, "Warn": true, "Error": true}

// isText reports whether a call only makes words: nobody promises the order of their parts, or that
// a line is logged.
func (m *goMutator) isText(e *ast.CallExpr) bool {
	names := strings.Split(m.source(e.Fun), ".")
	method := names[len(names)-1]
	isLogger := func(name string) bool { return name == "Logger" || name == "log" }
	return names[0] == "fmt" || levels[method] && slices.ContainsFunc(names, isLogger)
}

// areText reports whether statements only make words. None are no words.
func (m *goMutator) areText(list []ast.Stmt) bool {
	for _, s := range list {
		e, ok := s.(*ast.ExprStmt)
		if !ok {
			return false
		}
		call, ok := e.X.(*ast.CallExpr)
		if !ok || !m.isText(call) {
			return false
		}
	}
	return len(list) > 0
}

// unwrap passes a value on as it came, where a function caps, cleans or copies it.
func (m *goMutator) unwrap(e *ast.CallExpr) {
	if len(e.Args) != 1 || m.info.Types[e.Fun].IsType() {
		return
	}
	in := m.info.Types[e.Args[0]]
	out := m.info.Types[e]
	converts := in.Type != nil && out.Type != nil && in.Value == nil
	if converts && types.Identical(in.Type, out.Type) && !copies[m.source(e.Fun)] {
		m.add("unwrap call", e.Pos(), e.End(), m.source(e.Args[0]))
	}
}

// literal leaves out fields.
func (m *goMutator) literal(e *ast.CompositeLit) {
	t := m.info.Types[e].Type
	if t == nil {
		return
	}
	if _, ok := t.Underlying().(*types.Struct); !ok {
		return
	}
	for i, elt := range e.Elts {
		if _, ok := elt.(*ast.KeyValueExpr); !ok {
			return
		}
		end := elt.End()
		if i+1 < len(e.Elts) {
			end = e.Elts[i+1].Pos()
		} else if rest := m.text[m.offset(end):m.offset(e.Rbrace)]; strings.HasPrefix(rest, ",") {
			end++ // or the comma before it would be followed by this one
		}
		m.add("drop field", elt.Pos(), end, "")
	}
}

// slice shifts the bounds of a slice.
func (m *goMutator) slice(e *ast.SliceExpr) {
	for _, bound := range []ast.Expr{e.Low, e.High} {
		if bound == nil {
			continue
		}
		if n, err := strconv.Atoi(m.source(bound)); err == nil {
			m.add("shift bound", bound.Pos(), bound.End(), strconv.Itoa(n+1))
			continue
		}
		m.add("drop bound", bound.Pos(), bound.End(), "")
	}
}

// statement collects the sites of SQL in a raw string.
func (m *goMutator) statement(e *ast.BasicLit) {
	if e.Kind != token.STRING || e.Value[0] != '`' || !isSQL(e.Value) {
		return
	}
	begin := m.offset(e.Pos()) + 1
	line := m.files.Position(e.Pos()).Line
	text := e.Value[1 : len(e.Value)-1]
	for _, c := range sqlChanges(source.SQL(text, 0), text) {
		m.sites = append(m.sites, Site{
			File: m.file, From: begin + c.from, To: begin + c.to, New: c.new, SQL: true,
			Operator: c.operator, Decl: m.decl, Line: line + strings.Count(text[:c.from], "\n"), Old: text[c.from:c.to], Moot: c.moot,
		})
	}
}
