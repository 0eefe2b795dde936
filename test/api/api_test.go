package api

import (
	"flag"
	"go/ast"
	"go/build"
	"go/format"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the files")

// private are the directories whose packages users do not import: internal ones, the laboratory's
// and programs.
var private = regexp.MustCompile(`(^|/)internal(/|$)|^(test|examples|cmd|deploy/monitoring|ops/console/e2e|telemetry/test|` +
	`idempotency/compat)(/|$)|testdata`)

func TestSurface(t *testing.T) {
	t.Parallel()
	is := map[string]string{}
	for dir, lines := range packages(t) {
		is[strings.ReplaceAll(dir, "/", "-")+".txt"] = strings.Join(lines, "\n") + "\n"
	}
	was := written(t)
	if len(is) < 10 {
		t.Fatal(len(is))
	}
	switch {
	case maps.Equal(was, is):
	case *update:
		keepChangelogSum(t)
		rewrite(t, was, is)
	default:
		report(t, was, is)
		if !t.Failed() {
			t.Error("the files differ in the order or the number of their lines")
		}
		t.Log("If the change is meant, run: go test ./test/api -update; once a version is released, it asks for a line in CHANGELOG.md")
	}
}

// written are the files of surfaces, by name.
func written(t *testing.T) map[string]string {
	names, err := filepath.Glob("*.txt")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, name := range names {
		text, err := os.ReadFile(name) //nolint:gosec // its own file
		if err != nil {
			t.Fatal(err)
		}
		files[name] = string(text)
	}
	return files
}

// rewrite writes the files of surfaces.
func rewrite(t *testing.T, was, is map[string]string) {
	for name, lines := range is {
		if err := os.WriteFile(name, []byte(lines), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name := range was {
		if _, there := is[name]; there {
			continue
		}
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
}

// report fails for each line that is new, or gone.
func report(t *testing.T, was, is map[string]string) {
	linesOf := func(text string) []string { return strings.Split(strings.TrimSuffix(text, "\n"), "\n") }
	for name, text := range is {
		before := linesOf(was[name])
		for _, l := range linesOf(text) {
			if !slices.Contains(before, l) {
				t.Errorf("%s: new: %s", name, l)
			}
		}
	}
	for name, text := range was {
		now := linesOf(is[name])
		for _, l := range linesOf(text) {
			if !slices.Contains(now, l) {
				t.Errorf("%s: gone: %s", name, l)
			}
		}
	}
}

// packages are the lines of the public packages' surfaces, sorted, by directory.
func packages(t *testing.T) map[string][]string {
	out, err := exec.CommandContext(t.Context(), "git", "-C", "../..", "ls-files", "-z", "*.go").Output()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	c := build.Default
	c.GOOS = "linux"
	c.GOARCH = "amd64"
	c.BuildTags = nil
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		dir := path.Dir(name)
		if strings.HasSuffix(name, "_test.go") || private.MatchString(dir) {
			continue
		}
		built, err := c.MatchFile("../../"+dir, path.Base(name))
		if os.IsNotExist(err) || err == nil && !built {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), "../../"+name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		all[dir] = append(all[dir], surface(f)...)
	}
	for _, lines := range all {
		slices.Sort(lines)
	}
	return all
}

// surface has a line for each exported name of a file, and for each exported field and method of
// exported types.
func surface(f *ast.File) (lines []string) {
	add := func(words ...string) { lines = append(lines, strings.TrimSpace(strings.Join(words, " "))) }
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			d.Body = nil
			ofUsers := d.Recv == nil || ast.IsExported(strings.TrimPrefix(source(d.Recv.List[0].Type), "*"))
			if ofUsers && d.Name.IsExported() {
				add(source(d))
			}
		case *ast.GenDecl:
			var typ ast.Expr // of a constant that repeats the one before
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.ValueSpec:
					if s.Type != nil || s.Values != nil {
						typ = s.Type
					}
					for _, n := range s.Names {
						if n.IsExported() {
							add(d.Tok.String(), n.Name, source(typ))
						}
					}
				case *ast.TypeSpec:
					if s.Name.IsExported() {
						typeLines(s, add)
					}
				}
			}
		}
	}
	return lines
}

func typeLines(s *ast.TypeSpec, add func(words ...string)) {
	name := "type " + s.Name.Name + parameters(s.TypeParams)
	switch t := s.Type.(type) {
	case *ast.StructType:
		add(name, "struct")
		for _, field := range t.Fields.List {
			for _, n := range field.Names {
				if n.IsExported() {
					add(name+"."+n.Name, source(field.Type))
				}
			}
			if field.Names == nil {
				add(name, "embeds", source(field.Type))
			}
		}
	case *ast.InterfaceType:
		add(name, "interface")
		for _, m := range t.Methods.List {
			for _, n := range m.Names {
				add(name+"."+n.Name, source(m.Type))
			}
			if m.Names == nil {
				add(name, "embeds", source(m.Type))
			}
		}
	default:
		if s.Assign.IsValid() {
			name += " ="
		}
		add(name, source(s.Type))
	}
}

func parameters(list *ast.FieldList) string {
	if list == nil {
		return ""
	}
	var all []string
	for _, p := range list.List {
		for _, n := range p.Names {
			all = append(all, n.Name+" "+source(p.Type))
		}
	}
	return "[" + strings.Join(all, ", ") + "]"
}

// source is the text of a node on one line.
func source(n ast.Node) string {
	if n == nil || n == ast.Expr(nil) {
		return ""
	}
	var b strings.Builder
	if err := format.Node(&b, token.NewFileSet(), n); err != nil {
		panic(err)
	}
	return strings.Join(strings.Fields(b.String()), " ")
}
