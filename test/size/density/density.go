// Package density finds Go lines that hold more than one thought.
//
// Its rules, of which none can be switched off at a line:
//
//   - more than two values in one assignment, unless they are one call's results or a swap;
//   - an assignment in front of an if or a switch whose condition does not read it;
//   - a literal that is indexed where it is written;
//   - a condition of four or more operands without a name;
//   - a context in a struct, but for the types in perCall;
//   - a line above 120 columns, or 140 in tests and the laboratory, where a tab counts 4.
package density

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strings"
)

const (
	values   = 2 // in one assignment
	operands = 3 // of one condition
	tab      = 4 // columns
)

// The last columns of a line.
const (
	Product    = 120
	Laboratory = 140
)

// Finding is a place that breaks a rule.
type Finding struct {
	File string
	Line int
	Text string
}

func (f Finding) String() string { return fmt.Sprintf("%s:%d: %s", f.File, f.Line, f.Text) }

// Measure is what a file measures. The sum of two is what both do.
type Measure struct {
	Code       int // lines that are neither empty nor a comment
	Characters int // of those lines, without their indentation
	Parallel   int // assignments of two or more values, swaps too
	Findings   int
}

// Add adds another file's figures.
func (m *Measure) Add(other Measure) {
	m.Code += other.Code
	m.Characters += other.Characters
	m.Parallel += other.Parallel
	m.Findings += other.Findings
}

// File measures a file, and finds what breaks a rule. Its name is its path from the root, columns
// how wide a line may be.
func File(name string, src []byte, columns int) (Measure, []Finding, error) {
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, name, src, parser.SkipObjectResolution)
	if err != nil {
		return Measure{}, nil, err
	}
	r := &reading{name: name, src: src, files: files, types: map[*ast.StructType]string{}}
	r.lines(columns)
	ast.Inspect(parsed, r.node)
	slices.SortStableFunc(r.found, func(a, b Finding) int { return a.Line - b.Line })
	r.size.Findings = len(r.found)
	return r.size, r.found, nil
}

// reading is one file's.
type reading struct {
	name  string
	src   []byte
	files *token.FileSet
	size  Measure
	found []Finding
	types map[*ast.StructType]string // by directory and name
}

func (r *reading) report(line int, text string, values ...any) {
	r.found = append(r.found, Finding{File: r.name, Line: line, Text: fmt.Sprintf(text, values...)})
}

func (r *reading) reportAt(n ast.Node, text string, values ...any) {
	r.report(r.files.Position(n.Pos()).Line, text, values...)
}

// text is a node's source.
func (r *reading) text(n ast.Node) string {
	return string(r.src[r.files.Position(n.Pos()).Offset:r.files.Position(n.End()).Offset])
}

func (r *reading) lines(columns int) {
	number := 0
	for line := range strings.Lines(string(r.src)) {
		number++
		line = strings.TrimSuffix(line, "\n")
		wide := len([]rune(line)) + (tab-1)*strings.Count(line, "\t")
		if wide > columns {
			r.report(number, "%d columns: at most %d", wide, columns)
		}
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") {
			r.size.Code++
			r.size.Characters += len(line)
		}
	}
}

func (r *reading) node(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.AssignStmt:
		r.assignment(n, len(n.Lhs), len(n.Rhs), !r.swap(n))
		if len(n.Lhs) > 1 && len(n.Lhs) == len(n.Rhs) {
			r.size.Parallel++
		}
	case *ast.ValueSpec:
		r.assignment(n, len(n.Names), len(n.Values), true)
	case *ast.IfStmt:
		r.before(n.Init, n.Cond)
		r.condition(n.Cond)
	case *ast.ForStmt:
		r.condition(n.Cond)
	case *ast.SwitchStmt:
		r.choice(n)
	case *ast.TypeSpec:
		if fields, ok := n.Type.(*ast.StructType); ok {
			r.types[fields] = path.Dir(r.name) + "." + n.Name.Name
		}
	case *ast.StructType:
		r.contexts(n)
	case *ast.IndexExpr:
		if _, literal := ast.Unparen(n.X).(*ast.CompositeLit); literal {
			r.reportAt(n, "a literal indexed where it is written: a function with a name, or an if")
		}
	}
	return true
}

// assignment reports one of too many values. One call's results are one value on the right.
func (r *reading) assignment(n ast.Node, left, right int, steps bool) {
	if left > values && left == right && steps {
		r.reportAt(n, "%d values in one assignment: a step each", left)
	}
}

// swap reports whether what stands on the left is what stands on the right, in another order.
func (r *reading) swap(n *ast.AssignStmt) bool {
	texts := func(all []ast.Expr) []string {
		var sorted []string
		for _, e := range all {
			sorted = append(sorted, r.text(e))
		}
		slices.Sort(sorted)
		return sorted
	}
	return slices.Equal(texts(n.Lhs), texts(n.Rhs))
}

// before reports an assignment in front of conditions that do not read what it sets.
func (r *reading) before(init ast.Stmt, conditions ...ast.Expr) {
	var set []ast.Expr
	switch init := init.(type) {
	case *ast.AssignStmt:
		if init.Tok == token.DEFINE {
			return // its names are for the branches too
		}
		set = init.Lhs
	case *ast.IncDecStmt:
		set = []ast.Expr{init.X}
	default:
		return
	}
	for _, condition := range conditions {
		for _, s := range set {
			if strings.Contains(r.text(condition), r.text(s)) {
				return
			}
		}
	}
	r.reportAt(init, "an assignment in front of a condition that does not read it: a line of its own")
}

// choice reads a switch. The cases of one without a value are conditions.
func (r *reading) choice(n *ast.SwitchStmt) {
	var conditions []ast.Expr
	if n.Tag != nil {
		conditions = append(conditions, n.Tag)
	} else {
		for _, c := range n.Body.List {
			conditions = append(conditions, c.(*ast.CaseClause).List...)
		}
		for _, c := range conditions {
			r.condition(c)
		}
	}
	r.before(n.Init, conditions...)
}

func (r *reading) condition(e ast.Expr) {
	if n := count(e); n > operands {
		r.reportAt(e, "a condition of %d operands: give it, or a part of it, a name", n)
	}
}

// count returns how many operands && and || join.
func count(e ast.Expr) int {
	switch e := e.(type) {
	case nil:
		return 0
	case *ast.ParenExpr:
		return count(e.X)
	case *ast.UnaryExpr:
		if e.Op == token.NOT {
			return count(e.X)
		}
	case *ast.BinaryExpr:
		if e.Op == token.LAND || e.Op == token.LOR {
			return count(e.X) + count(e.Y)
		}
	}
	return 1
}

// contexts reports fields that hold a context.
func (r *reading) contexts(n *ast.StructType) {
	if perCall[r.types[n]] {
		return
	}
	for _, field := range n.Fields.List {
		if r.text(field.Type) == "context.Context" {
			r.reportAt(field, "a context in a struct: an argument, or list a type that lives as long as one call")
		}
	}
}
