package operate

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/ops"
)

// comments.txt has the comment of each field whose tag is doc:"above", in every package.
func TestComments(t *testing.T) {
	t.Parallel()
	files, err := exec.Command("git", "grep", "--untracked", "--full-name", "-l", `doc:"above"`, "--", "../../*.go").Output()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for name := range strings.Lines(string(files)) {
		if name = strings.TrimSpace(name); !strings.HasPrefix(name, "internal/operate/comments") {
			lines = append(lines, commentsAbove(t, name)...)
		}
	}
	slices.Sort(lines)
	want := strings.Join(lines, "")
	if *update {
		if err := os.WriteFile("comments.txt", []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if comments != want || len(lines) < 40 {
		t.Errorf("comments.txt is not what the %d comments say: go test ./internal/operate -run TestComments -update", len(lines))
	}
}

// commentsAbove returns a line for each field of a file whose tag is doc:"above".
func commentsAbove(t *testing.T, name string) (lines []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../../"+name, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		of, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		fields, ok := of.Type.(*ast.StructType)
		if !ok {
			return true
		}
		for _, f := range fields.Fields.List {
			if f.Tag == nil || !strings.Contains(f.Tag.Value, `doc:"above"`) {
				continue
			}
			comment := strings.Join(strings.Fields(f.Doc.Text()), " ")
			field := path.Dir(name) + "." + of.Name.Name + "." + f.Names[0].Name
			if comment == "" {
				t.Errorf("%s has no comment", field)
			}
			lines = append(lines, field+"\t"+comment+"\n")
		}
		return true
	})
	return lines
}

// A field of an embedded struct has the comment that stands there.
func TestDoc(t *testing.T) {
	t.Parallel()
	type whole struct {
		Beside int `json:"beside" doc:"in the tag"`
		*ops.Owner
	}
	all := reflect.TypeFor[whole]()
	for name, want := range map[string]string{
		"Beside": "in the tag",
		"Part":   "consumer, relay, receiver (of a queue), endpoint (of webhooks) or layer (of the HTTP package)",
		"Host":   "",
	} {
		f, _ := all.FieldByName(name)
		if got := Doc(all, &f); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
