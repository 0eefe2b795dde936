package docs

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the index of the rules")

var (
	heading = regexp.MustCompile(`^# (.*)\n`)
	rule    = regexp.MustCompile(`(?m)^\*\*(([A-Z])\d+[a-z]?)\. ([^*]*)\*\*`)
	// named finds rules in a comment: (T2, F4), (C1 to C7), and "T2, F4: " at its beginning.
	named    = regexp.MustCompile(`\(([A-Z]\d+(?:(?:, | and | to )[A-Z]\d+)*)\)|^([A-Z]\d+(?:(?:, | and )[A-Z]\d+)*):|[,:;] ([A-Z]\d+(?:(?:, | and )[A-Z]\d+)*)\)`)
	quoted   = regexp.MustCompile("`([^`]+)`")
	ruleID   = regexp.MustCompile(`[A-Z]\d+`)
	testName = regexp.MustCompile(`^(?:Test|Fuzz)([A-Z]\d+)`)
	sqlName  = regexp.MustCompile(`(?m)((?:^--.*\n)+)create (?:or replace )?(?:function|procedure|view|table) (onlyonce\.\w+)`)
)

// byRule are the names of functions, or of tests, that name a rule.
type byRule map[string]map[string]bool

// add notes the rules that a comment names.
func (r byRule) add(name, comment string) {
	for _, m := range named.FindAllStringSubmatch(comment, -1) {
		ids := ruleID.FindAllString(strings.Join(m[1:], ""), -1)
		if strings.Contains(m[1], " to ") && len(ids) == 2 {
			from, _ := strconv.Atoi(ids[0][1:])
			to, _ := strconv.Atoi(ids[1][1:])
			ids = nil
			for n := from; n <= to; n++ {
				ids = append(ids, fmt.Sprint(m[1][:1], n))
			}
		}
		for _, id := range ids {
			r.note(id, name)
		}
	}
}

func (r byRule) note(id, name string) {
	if r[id] == nil {
		r[id] = map[string]bool{}
	}
	r[id][name] = true
}

// list returns the names as Markdown.
func (r byRule) list(id string) string {
	return "`" + strings.Join(slices.Sorted(maps.Keys(r[id])), "`, `") + "`"
}

// starred returns the tests of a rule, with one name for those that begin with the rule's id.
func (r byRule) starred(id string) byRule {
	short := byRule{}
	for name := range r[id] {
		if m := testName.FindStringSubmatch(name); m != nil && m[1] == id {
			name = "Test" + id + "*"
		}
		short.note(id, name)
	}
	return short
}

// Each rule is in one chapter, that of its letter. A function or an SQL constant that enforces it
// names it in its comments, and so does a test. The index is made of the chapters and of these.
func TestIndexOfTheRules(t *testing.T) {
	t.Parallel()
	functions, tests := rulesInTheCode(t)
	// By subject: what a consumer meets first.
	index, seen := "# The rules\n\nEach rule with the functions and the tests that name it. `TestT1*` are those whose names begin so: `go test -run 'TestT1[A-Z]' ./...`\n\n[Lifetimes](lifetimes.md) has what lies between the chapters: which of two things ends first, and the rule of each.\n", map[string]bool{}
	for _, letter := range strings.Split("tfckdoewqhnsu", "") {
		text := textOf(t, "docs/rules/"+letter+".md")
		index += fmt.Sprintf("\n## [%s](%s.md)\n\n", heading.FindStringSubmatch(text)[1], letter)
		for _, m := range rule.FindAllStringSubmatch(text, -1) {
			id, title := m[1], strings.TrimRight(strings.Join(strings.Fields(m[3]), " "), ",.")
			if seen[id] || !strings.EqualFold(m[2], letter) {
				t.Errorf("rule %s is in chapter %s: want it once, in that of its letter", id, letter)
			}
			seen[id] = true
			if len(functions[id]) == 0 || len(tests[id]) == 0 && id != "T10" { // T10 is the shape of the code: no test can take it out
				t.Errorf("rule %s: functions %s, tests %s: want one of each whose comment names it, for example (%s)", id, functions.list(id), tests.list(id), id)
			}
			index += fmt.Sprintf("- **%s** %s.\n  - Functions: %s\n", id, title, functions.list(id))
			if len(tests[id]) > 0 {
				index += "  - Tests: " + tests.starred(id).list(id) + "\n"
			}
		}
	}
	if all := len(rule.FindAllString(textOf(t, "docs/*.md")+textOf(t, "docs/rules/?.md"), -1)); len(seen) < 130 || all != len(seen) {
		t.Errorf("%d rules in the chapters, and %d in all pages", len(seen), all)
	}
	const page = root + "/docs/rules/README.md"
	if *update {
		if err := os.WriteFile(page, []byte(index), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if now, err := os.ReadFile(page); err != nil || string(now) != index {
		t.Errorf("%s is not made of the chapters and the code: go test ./test/docs -run TestIndexOfTheRules -update (%v)", page, err)
	}
}

// The page of lifetimes names rules that there are. Each thing has a cell for each event.
func TestLifetimesNamesRules(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, m := range rule.FindAllStringSubmatch(textOf(t, "docs/rules/?.md"), -1) {
		known[m[1]] = true
	}
	_, events, _ := strings.Cut(textOf(t, "docs/rules/lifetimes.md"), "## Events")
	matrix, reasons, _ := strings.Cut(events, "| | It cannot happen")
	var things, ruled, cannot int
	for line := range strings.Lines(matrix) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if len(cells) < 2 || strings.HasPrefix(line, "| Thing") {
			continue
		}
		things++
		if len(cells) != 17 {
			t.Errorf("%s: %d cells, want 17", cells[0], len(cells))
		}
		for _, c := range cells[1:] {
			c = strings.TrimSuffix(strings.TrimSpace(c), "*")
			switch {
			case known[c]:
				ruled++
			case len(c) == 1 && strings.Contains(reasons, "\n| "+c+" | "):
				cannot++
			default:
				t.Errorf("%s: %q is neither a rule nor a reason", cells[0], c)
			}
		}
	}
	t.Logf("%d things, %d cells with a rule, %d that cannot happen", things, ruled, cannot)
	if things < 20 {
		t.Errorf("%d things were found", things)
	}
}

// rulesInTheCode reads what names a rule: product code with its SQL, and all tests.
func rulesInTheCode(t *testing.T) (functions, tests byRule) {
	t.Helper()
	functions, tests = byRule{}, byRule{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if d != nil && (d.Name() == "testdata" || d.Name() == ".git") {
				return fs.SkipDir
			}
			return err
		}
		dir, _ := filepath.Rel(root, filepath.Dir(path))
		isTest := strings.HasSuffix(path, "_test.go")
		switch {
		case strings.HasSuffix(path, ".sql") && strings.HasPrefix(dir, "migrations"):
			text, err := os.ReadFile(path) //nolint:gosec // of this repository
			for _, m := range sqlName.FindAllStringSubmatch(string(text), -1) {
				functions.add(m[2], strings.TrimPrefix(strings.ReplaceAll(m[1], "\n-- ", " "), "-- "))
			}
			return err
		case !strings.HasSuffix(path, ".go"), !isTest && laboratory.MatchString(filepath.ToSlash(dir)+"/"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			name, comment := described(file, decl)
			if name == "" {
				continue
			}
			if !isTest {
				functions.add(dir+"."+name, comment)
			} else if strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Fuzz") {
				tests.add(name, comment)
				if m := testName.FindStringSubmatch(name); m != nil {
					tests.note(m[1], name)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return functions, tests
}

// described returns a declaration's name, for example (*T).m, and all comments in it and before it.
// Of a group of constants it is the first name.
func described(file *ast.File, decl ast.Decl) (name, comment string) {
	var doc *ast.CommentGroup
	switch d := decl.(type) {
	case *ast.FuncDecl:
		doc, name = d.Doc, d.Name.Name
		if d.Recv != nil {
			recv := d.Recv.List[0].Type
			star := ""
			if s, ok := recv.(*ast.StarExpr); ok {
				recv, star = s.X, "*"
			}
			if x, ok := recv.(*ast.IndexExpr); ok {
				recv = x.X
			}
			if id, ok := recv.(*ast.Ident); ok {
				name = "(" + star + id.Name + ")." + name
			}
		}
	case *ast.GenDecl:
		doc = d.Doc
		switch s := d.Specs[0].(type) {
		case *ast.ValueSpec:
			name = s.Names[0].Name
		case *ast.TypeSpec:
			name = s.Name.Name
		}
	}
	from := decl.Pos()
	if doc != nil {
		from = doc.Pos()
	}
	var all []string
	for _, c := range file.Comments {
		if c.Pos() >= from && c.End() <= decl.End() {
			all = append(all, strings.Join(strings.Fields(c.Text()), " "))
		}
	}
	return name, strings.Join(all, "\n")
}

func textOf(t *testing.T, pattern string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, pattern))
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}
