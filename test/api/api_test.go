package api

import (
	"flag"
	"go/ast"
	"go/build"
	"go/format"
	"go/parser"
	"go/token"
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
var private = regexp.MustCompile(`(^|/)internal(/|$)|^(test|examples|cmd|deploy/monitoring|ops/console/e2e|telemetry/test|idempotency/compat)(/|$)|testdata`)

func TestSurface(t *testing.T) {
	t.Parallel()
	want := map[string]bool{}
	for dir, lines := range packages(t) {
		name := strings.ReplaceAll(dir, "/", "-") + ".txt"
		want[name] = true
		if *update {
			if err := os.WriteFile(name, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			continue
		}
		old, err := os.ReadFile(name) //nolint:gosec // its own file
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		locked := strings.Split(strings.TrimSuffix(string(old), "\n"), "\n")
		for _, l := range lines {
			if !slices.Contains(locked, l) {
				t.Errorf("%s: new: %s", dir, l)
			}
		}
		for _, l := range locked {
			if l != "" && !slices.Contains(lines, l) {
				t.Errorf("%s: gone: %s", dir, l)
			}
		}
	}
	files, err := filepath.Glob("*.txt")
	if err != nil || len(want) < 10 {
		t.Fatal(len(want), err)
	}
	for _, f := range files {
		if !want[f] && *update {
			err = os.Remove(f)
		} else if !want[f] {
			t.Errorf("%s: the package is gone", f)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if t.Failed() {
		t.Log("If the change is meant, run: go test ./test/api -update (and keep CHANGELOG.md true)")
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
	c.GOOS, c.GOARCH, c.BuildTags = "linux", "amd64", nil
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
