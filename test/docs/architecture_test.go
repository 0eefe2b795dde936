package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	// mention is a name in backquotes, or the name of a Go file, in backquotes or not.
	mention = regexp.MustCompile("`([^`\n]+)`|[\\w/]+\\.go\\b")
	goFile  = regexp.MustCompile(`^[\w/]+\.go$`)
	method  = regexp.MustCompile(`^\(\*?(\w+)\)\.(\w+)$`)
	// beside is what stands between a name and its file.
	beside     = regexp.MustCompile(`^[\s,(\[]*$`)
	linkTarget = regexp.MustCompile(`\]\([^)]*\)`)
)

// declarations are the names that each Go file of ours declares: functions, types, and methods as
// (*T).m, whatever their receivers.
func declarations(t *testing.T) map[string]map[string]bool {
	t.Helper()
	all := map[string]map[string]bool{}
	for _, name := range tracked(t, "*.go") {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		names := map[string]bool{}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				names[d.Name.Name] = true
				if d.Recv != nil {
					names["(*"+base(d.Recv.List[0].Type)+")."+d.Name.Name] = true
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if s, is := s.(*ast.TypeSpec); is {
						names[s.Name.Name] = true
					}
				}
			}
		}
		all[name] = names
	}
	return all
}

// declaring returns whether a file of that name exists, and whether one of them declares a name.
func declaring(all map[string]map[string]bool, file, name string) (exists, declares bool) {
	if m := method.FindStringSubmatch(name); m != nil {
		name = "(*" + m[1] + ")." + m[2]
	}
	for path, names := range all {
		if path == file || strings.HasSuffix(path, "/"+file) {
			exists = true
			declares = declares || names[name]
		}
	}
	return exists, declares
}

// What the two maps of the code say is there: each name in backquotes, also in running text and as
// a method; each file; and a name beside a file is declared in that file.
func TestMapsOfTheCodeNameWhatIsThere(t *testing.T) {
	t.Parallel()
	c := readCode(t)
	all := declarations(t)
	pairs := 0
	for _, page := range []string{"docs/architecture.md", "CONTRIBUTING.md"} {
		plain := linkTarget.ReplaceAllString(codeBlock.ReplaceAllString(fileText(t, page), ""), "]")
		// the last name, and where it ends
		name := ""
		end := 0
		for _, at := range mention.FindAllStringIndex(plain, -1) {
			word := strings.Trim(plain[at[0]:at[1]], "`")
			if !goFile.MatchString(word) {
				if gone := missingAnywhere(c, all, word); gone != "" {
					t.Errorf("%s: %s in `%s` does not exist", page, gone, word)
				}
				name = word
				end = at[1]
				continue
			}
			exists, declares := declaring(all, word, name)
			switch {
			case !exists:
				t.Errorf("%s: there is no file %s", page, word)
			case name == "" || !beside.MatchString(plain[end:at[0]]):
			case !declares:
				t.Errorf("%s: `%s` is not declared in %s", page, name, word)
			default:
				pairs++
			}
			name = ""
		}
	}
	if pairs < 20 {
		t.Errorf("%d names with their files were found", pairs)
	}
}

// missingAnywhere is missing, and knows methods with their receivers.
func missingAnywhere(c *code, all map[string]map[string]bool, name string) string {
	m := method.FindStringSubmatch(name)
	if m == nil {
		return c.missing(name)
	}
	for _, names := range all {
		if names["(*"+m[1]+")."+m[2]] {
			return ""
		}
	}
	return name
}
