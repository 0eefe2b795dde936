package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/internal/metrics"
)

// code has the names of the repository, to look up what the documents name.
type code struct {
	words     map[string]bool            // identifiers, and words of strings and of other files
	packages  map[string]map[string]bool // by last part of the path: identifiers
	members   map[string]map[string]bool // by type name: fields, methods, and embedded types
	strings   map[string]bool            // whole string literals, for example flags
	commands  map[string]bool            // of onlyonce
	declared  map[string]bool            // by packages of the product: names, fields and methods
	sqlstates map[string]bool
}

var (
	word       = regexp.MustCompile(`\w+`)
	goName     = regexp.MustCompile(`^(\w+)((?:\.\w+)+)?(?:\(\))?$`)
	exported   = regexp.MustCompile(`^[A-Z][a-z]\w*$`)
	quoted     = regexp.MustCompile("`([^`]+)`")
	laboratory = regexp.MustCompile(`^(test|examples|ops/console/e2e|telemetry/test)/|_test\.go$`)
	sqlstate   = regexp.MustCompile(`\bOO\d{3}\b`)
	flagName   = regexp.MustCompile(`(?:^| )-([a-z][a-z-]*)`)
	testName   = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	alertName  = regexp.MustCompile(`- alert: (\w+)`)
	commandOf  = regexp.MustCompile(`^onlyonce (?:help )?([a-z]+)(?: ([a-z]+))?`)
)

// others are names of other libraries, which no code of ours has.
var others = map[string]bool{
	"otelpgx":          true,
	"kotel":            true,
	"kgo.WithHooks":    true,
	"Reader":           true,
	"RequireAll":       true,
	"RunAsTransaction": true,
	"AllISRAcks":       true,
}

func readCode(t *testing.T) *code {
	t.Helper()
	c := &code{
		words:     map[string]bool{},
		packages:  map[string]map[string]bool{},
		members:   map[string]map[string]bool{},
		strings:   map[string]bool{},
		commands:  map[string]bool{},
		declared:  map[string]bool{},
		sqlstates: map[string]bool{},
	}
	fset := token.NewFileSet()
	for _, name := range tracked(t, "*.go", "*.sql", "*.html", "*.py", "*.yaml", "*.yml", "Makefile", ".ci/*", "*go.mod") {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if path.Ext(name) != ".go" {
			c.add(string(text))
			for _, m := range alertName.FindAllStringSubmatch(string(text), -1) {
				c.strings[m[1]] = true
			}
			continue
		}
		f, err := parser.ParseFile(fset, name, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		c.addFile(name, f)
	}
	return c
}

// tracked are the files that git knows, by their path from the root.
func tracked(t *testing.T, globs ...string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "git", append([]string{"-C", root, "ls-files", "-z"}, globs...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
}

func (c *code) add(text string) {
	for _, w := range word.FindAllString(text, -1) {
		c.words[w] = true
	}
	for _, s := range sqlstate.FindAllString(text, -1) {
		c.sqlstates[s] = true
	}
}

func put(sets map[string]map[string]bool, key string, names ...string) {
	if sets[key] == nil {
		sets[key] = map[string]bool{}
	}
	for _, n := range names {
		sets[key][n] = true
	}
}

func (c *code) addFile(name string, f *ast.File) {
	dir := path.Dir(name)
	declare := func(ids ...*ast.Ident) {
		for _, id := range ids {
			c.declared[id.Name] = c.declared[id.Name] || !laboratory.MatchString(name)
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			declare(n.Names...)
		case *ast.Field:
			declare(n.Names...)
			if n.Tag != nil {
				c.strings[reflect.StructTag(strings.Trim(n.Tag.Value, "`")).Get("flag")] = true
			}
		case *ast.Ident:
			c.words[n.Name] = true
			put(c.packages, path.Base(dir), n.Name)
		case *ast.BasicLit:
			c.add(n.Value)
			c.strings[strings.Trim(n.Value, "\"`")] = true
		case *ast.KeyValueExpr:
			key, named := n.Key.(*ast.Ident)
			lit, ok := n.Value.(*ast.BasicLit)
			if !named || !ok {
				break
			}
			command := dir == "cmd/onlyonce" && key.Name == "name"
			decision := dir == "internal/operate" && key.Name == "Name"
			if command || decision {
				c.commands[strings.Trim(lit.Value, `"`)] = true
			}
		case *ast.FuncDecl:
			declare(n.Name)
			if n.Recv != nil {
				put(c.members, base(n.Recv.List[0].Type), n.Name.Name)
			}
		case *ast.TypeSpec:
			declare(n.Name)
			switch typ := n.Type.(type) {
			case *ast.StructType:
				for _, field := range typ.Fields.List {
					for _, id := range field.Names {
						put(c.members, n.Name.Name, id.Name)
					}
					if field.Names == nil {
						put(c.members, n.Name.Name, "embedded:"+base(field.Type))
					}
				}
			case *ast.InterfaceType:
				for _, m := range typ.Methods.List {
					for _, id := range m.Names {
						put(c.members, n.Name.Name, id.Name)
					}
				}
			default:
				put(c.members, n.Name.Name, "embedded:"+base(n.Type))
			}
		}
		return true
	})
}

// base is a type's name without pointer, package and arguments.
func base(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return base(e.X)
	case *ast.IndexExpr:
		return base(e.X)
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// has reports whether a type has a member, itself or through what it embeds.
func (c *code) has(typ, member string, depth int) bool {
	if c.members[typ][member] {
		return true
	}
	for m := range c.members[typ] {
		if inner, ok := strings.CutPrefix(m, "embedded:"); ok && depth > 0 && c.has(inner, member, depth-1) {
			return true
		}
	}
	return false
}

// missing returns what of a name in backquotes does not exist, or "".
func (c *code) missing(name string) string {
	m := goName.FindStringSubmatch(name)
	if m == nil {
		return ""
	}
	parts := strings.Split(strings.TrimSuffix(name, "()"), ".")
	for _, p := range parts {
		if !c.words[p] {
			return p
		}
	}
	alone := len(parts) == 1 && exported.MatchString(name) && !strings.HasPrefix(name, "Test")
	if alone && !c.declared[name] && !c.strings[name] {
		return name
	}
	for i := 1; i < len(parts); i++ {
		typ := parts[i-1]
		member := parts[i]
		ofPackage := i == 1 && c.packages[typ] != nil
		switch {
		case ofPackage && ast.IsExported(member) && !c.packages[typ][member]:
			return member
		case ast.IsExported(typ) && c.members[typ] != nil && !c.has(typ, member, 3):
			return typ + "." + member
		}
	}
	return ""
}

// Names in backquotes in tables, and commands, flags, metrics, SQL functions and our SQLSTATEs
// anywhere in the documents, exist.
func TestDocumentsNameWhatExists(t *testing.T) {
	t.Parallel()
	c := readCode(t)
	names := 0
	for _, page := range tracked(t, "*.md") {
		if strings.HasPrefix(page, "docs/results/") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		fenced := false
		for i, line := range strings.Split(string(text), "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				fenced = !fenced
			}
			for _, s := range sqlstate.FindAllString(line, -1) {
				if !c.sqlstates[s] {
					t.Errorf("%s:%d: SQLSTATE %s does not exist", page, i+1, s)
				}
			}
			if fenced {
				continue
			}
			for _, q := range quoted.FindAllStringSubmatch(line, -1) {
				names++
				gone := ""
				cmd := commandOf.FindStringSubmatch(q[1])
				switch {
				case cmd != nil && !c.commands[cmd[1]] && !c.commands[cmd[1]+" "+cmd[2]]:
					gone = cmd[0]
				case metrics.ByPrometheus(q[1]) != nil || others[q[1]]:
				case strings.HasPrefix(q[1], "onlyonce_") && !c.words[q[1]]:
					gone = q[1]
				case strings.HasPrefix(q[1], "onlyonce.") || strings.HasPrefix(strings.TrimSpace(line), "|"):
					gone = c.missing(q[1])
				}
				if cmd != nil || strings.HasPrefix(q[1], "-") {
					for _, f := range flagName.FindAllStringSubmatch(q[1], -1) {
						if !c.strings[f[1]] {
							gone = "-" + f[1]
						}
					}
				}
				if gone != "" {
					t.Errorf("%s:%d: %s in `%s` does not exist", page, i+1, gone, q[1])
				}
			}
		}
	}
	if names < 1000 {
		t.Errorf("%d names were found", names)
	}
}

// Each clause of a table of clauses names a test that there is.
func TestClausesNameTheirTests(t *testing.T) {
	t.Parallel()
	tests := map[string]bool{}
	for _, name := range testName.FindAllStringSubmatch(sources(t, "_test.go"), -1) {
		tests[name[1]] = true
	}
	clauses := 0
	for _, page := range pages(t) {
		column := -1 // of the tests, within a table of clauses
		text, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			cells := strings.Split(strings.TrimSpace(line), "|")
			switch {
			case len(cells) < 3:
				column = -1
				continue
			case strings.TrimSpace(cells[1]) == "Clause":
				column = slices.IndexFunc(cells, func(cell string) bool { return strings.TrimSpace(cell) == "Test" })
				continue
			case column < 0 || strings.HasPrefix(strings.TrimSpace(cells[1]), "---"):
				continue
			}
			clauses++
			named := quoted.FindAllStringSubmatch(cells[column], -1)
			if len(named) == 0 {
				t.Errorf("%s: clause %s names no test", page, cells[1])
			}
			for _, name := range named {
				if !tests[name[1]] {
					t.Errorf("%s: clause %s: there is no test %s", page, cells[1], name[1])
				}
			}
		}
	}
	if clauses < 30 {
		t.Errorf("%d clauses were found", clauses)
	}
}
