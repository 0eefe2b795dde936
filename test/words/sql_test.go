package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const sqlColumns = 120

// statement is SQL of a file.
type statement struct {
	file string
	line int // where it begins
	text string
}

// sqlText begins like SQL, or names a table of ours.
var (
	sqlText = regexp.MustCompile(`^\s*(?:--[^\n]*\n\s*)*(?:select|insert into|update|delete from|with \w+ as|with ` +
		`recursive|create|alter|drop|do \$|copy|lock|truncate|grant|revoke|values|union|where|returning|cross join|left join|case|on ` +
		`conflict|merge)\s`)
	sqlTable = regexp.MustCompile(`\b(?:from|into|update|join) onlyonce\.\w|\band \w+\.\w+ (?:=|<|>|is )`)
)

var sqlMayBeDense = regexp.MustCompile(`_test\.go$|/testdata/|^test/mutants/`)

// statements returns the SQL of files: .sql files, and raw strings of Go, from the first to the
// last one that a `+` joins. In tests it may be as it is, and so may what mutants replace.
func statements(t *testing.T) (all []statement) {
	t.Helper()
	for _, name := range tracked(t, "*.sql") {
		all = append(all, statement{name, 1, read(t, name)})
	}
	for _, name := range tracked(t, "*.go") {
		if !sqlMayBeDense.MatchString(name) {
			all = append(all, inGo(t, name, read(t, name))...)
		}
	}
	return all
}

func inGo(t *testing.T, name, src string) (all []statement) {
	t.Helper()
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		e, ok := n.(ast.Expr)
		if !ok {
			return true
		}
		raw := rawStrings(e)
		if len(raw) == 0 {
			return true
		}
		from := fset.Position(raw[0].Pos())
		text := src[from.Offset+1 : fset.Position(raw[len(raw)-1].End()).Offset-1]
		if sqlText.MatchString(text) || sqlTable.MatchString(text) {
			all = append(all, statement{name, from.Line, text})
		}
		return false
	})
	return all
}

// rawStrings returns the raw strings of a sum, or the one that an expression is.
func rawStrings(e ast.Expr) []*ast.BasicLit {
	switch e := e.(type) {
	case *ast.BasicLit:
		if strings.HasPrefix(e.Value, "`") {
			return []*ast.BasicLit{e}
		}
	case *ast.BinaryExpr:
		if e.Op == token.ADD {
			return slices.Concat(rawStrings(e.X), rawStrings(e.Y))
		}
	}
	return nil
}

// Lines of SQL are at most 120 columns wide, without what a line of Go has around it.
func TestSQLEndsAt120Columns(t *testing.T) {
	t.Parallel()
	for _, s := range statements(t) {
		for i, line := range strings.Split(s.text, "\n") {
			if n := width(line); n > sqlColumns {
				t.Errorf("%s:%d: %d columns", s.file, s.line+i, n)
			}
		}
	}
}

// A list of more than four columns, values or arguments has a line for each.
func TestSQLHasOneColumnALine(t *testing.T) {
	t.Parallel()
	all := statements(t)
	if len(all) < 500 {
		t.Fatalf("%d statements", len(all))
	}
	for _, s := range all {
		for _, line := range dense(s.text) {
			t.Errorf("%s:%d: a list of more than four has several in a line", s.file, s.line+line)
		}
	}
}

// dense returns the lines in which a list of more than four begins that has several in a line.
func dense(text string) (lines []int) {
	all := tokens(text)
	for _, items := range lists(all) {
		shares := func(i int) bool { return !all[i].starts }
		if len(items) > 4 && slices.ContainsFunc(items[1:], shares) {
			lines = append(lines, all[items[0]].line)
		}
	}
	return lines
}

func TestDenseLists(t *testing.T) {
	t.Parallel()
	long := "a, b,\nc,\nd,\ne"
	for sql, want := range map[string]int{
		"select a, b, c, d from t":                                       0,
		"select a,\nb,\nc,\nd,\ne from t":                                0,
		"select " + long + " from t":                                     1,
		"select distinct on (a, b) " + long + " from t":                  1,
		"select a is distinct from b, c, d, e, f from t":                 1,
		"select count(*) over (partition by a, b, c, d, e)":              0,
		"select array_agg(a order by a, b, c, d, e)":                     0,
		"select 1 where a in (1, 2, 3, 4, 5)":                            0,
		"select unnest(" + long + ")":                                    1,
		"select from unnest(a) as u(a, b, c, d, e)":                      0,
		"select (a, b, c, d, e) = (1, 2, 3, 4, 5)":                       0,
		"insert into t (" + long + ") values (1)":                        1,
		"insert into t as o (" + long + ") select 1":                     1,
		"insert into t values (1), (" + long + ")":                       1,
		"update t set a = 1, b = 2, c = 3, d = 4, e = 5 where true":      1,
		"delete from t returning " + long:                                1,
		"create table t (" + long + ")":                                  1,
		"create table t (a int,\nprimary key (a, b, c, d, e))":           0,
		"create index on t (a, b, c, d, e)":                              0,
		"create index i on onlyonce.t (a, b, c, d, e)":                   0,
		"create function onlyonce.f(" + long + ")":                       1,
		"create function f() returns table (" + long + ") as $$ end $$;": 1,
		"as $$ begin\nperform f(" + long + "); end $$":                   1,
		"select ` + columns + `, b, c, d, e from t":                      1,
		"select 'a, b, c, d, e, f' -- a, b, c, d, e":                     0,
	} {
		if got := dense(sql); len(got) != want {
			t.Errorf("%s: %v, want %d", sql, got, want)
		}
	}
}
