// Index prints the rules of docs/rules as a page of Markdown: each with the functions and the tests
// that name it in their comments. The site has the page (test/site); the repository does not,
// because it changes with every second commit.
//
//	go run ./test/docs/index [FOLDER]
package main

import (
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
)

func main() {
	root := "."
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	all, err := readRules(root)
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "index:", err)
		os.Exit(1)
	}
	fmt.Print(all.page())
}

var (
	heading = regexp.MustCompile(`^# (.*)\n`)
	rule    = regexp.MustCompile(`(?m)^\*\*(([A-Z])\d+[a-z]?)\. ([^*]*)\*\*`)
	// named finds rules in a comment: (T2, F4), (C1 to C7), and "T2, F4: " at its beginning.
	named = regexp.MustCompile(`\(([A-Z]\d+(?:(?:, | and | to )[A-Z]\d+)*)\)|^([A-Z]\d+(?:(?:, | and )[A-Z]\d+)*):|[,:;] ` +
		`([A-Z]\d+(?:(?:, | and )[A-Z]\d+)*)\)`)
	ruleID   = regexp.MustCompile(`[A-Z]\d+`)
	testName = regexp.MustCompile(`^(?:Test|Fuzz)([A-Z]\d+)`)
	sqlName  = regexp.MustCompile(`(?m)((?:^--.*\n)+)create (?:or replace )?(?:function|procedure|view|table) (onlyonce\.\w+)`)
	// unnamed are folders whose functions name no rule but in tests.
	unnamed = regexp.MustCompile(`^(test|examples|ops/console/e2e|telemetry/test)/`)
)

// letters of the chapters, by subject: what a consumer meets first.
const letters = "tfckdoewqhnsu"

// chapter is a page of docs/rules.
type chapter struct {
	letter, title string
	rules         []ruleOf
}

// ruleOf is a rule as its chapter states it.
type ruleOf struct{ id, letter, title string }

// index is all rules, with what names them.
type index struct {
	chapters         []chapter
	functions, tests byRule
}

// readRules reads the chapters and the code.
func readRules(root string) (all index, err error) {
	if all.functions, all.tests, err = rulesInTheCode(root); err != nil {
		return index{}, err
	}
	for _, letter := range strings.Split(letters, "") {
		text, err := os.ReadFile(filepath.Join(root, "docs", "rules", letter+".md"))
		if err != nil {
			return index{}, err
		}
		title := heading.FindSubmatch(text)
		if title == nil {
			return index{}, fmt.Errorf("docs/rules/%s.md does not begin with a heading", letter)
		}
		c := chapter{letter: letter, title: string(title[1])}
		for _, m := range rule.FindAllStringSubmatch(string(text), -1) {
			c.rules = append(c.rules, ruleOf{
				id:     m[1],
				letter: strings.ToLower(m[2]),
				title:  strings.TrimRight(strings.Join(strings.Fields(m[3]), " "), ",."),
			})
		}
		all.chapters = append(all.chapters, c)
	}
	return all, nil
}

// page returns the index as Markdown.
func (x index) page() string {
	var b strings.Builder
	b.WriteString("# The rules by name\n\nEach rule with the functions and the tests that name it. " +
		"`TestT1*` are those whose names begin so: `go test -run 'TestT1[A-Z]' ./...`\n")
	for _, c := range x.chapters {
		fmt.Fprintf(&b, "\n## [%s](%s.md)\n\n", c.title, c.letter)
		for _, r := range c.rules {
			fmt.Fprintf(&b, "- **%s** %s.\n  - Functions: %s\n", r.id, r.title, x.functions.list(r.id))
			if len(x.tests[r.id]) > 0 {
				fmt.Fprintf(&b, "  - Tests: %s\n", x.tests.starred(r.id).list(r.id))
			}
		}
	}
	return b.String()
}

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

// rulesInTheCode reads what names a rule: product code with its SQL, and all tests.
func rulesInTheCode(root string) (functions, tests byRule, err error) {
	functions = byRule{}
	tests = byRule{}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
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
		case !strings.HasSuffix(path, ".go"), !isTest && unnamed.MatchString(filepath.ToSlash(dir)+"/"):
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
	return functions, tests, err
}

// described returns a declaration's name, for example (*T).m, and all comments in it and before it.
// Of a group of constants it is the first name.
func described(file *ast.File, decl ast.Decl) (name, comment string) {
	var doc *ast.CommentGroup
	switch d := decl.(type) {
	case *ast.FuncDecl:
		doc = d.Doc
		name = d.Name.Name
		if d.Recv != nil {
			recv := d.Recv.List[0].Type
			star := ""
			if s, ok := recv.(*ast.StarExpr); ok {
				recv = s.X
				star = "*"
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
