package operate

import (
	_ "embed"
	"reflect"
	"strings"
	"sync"
)

// comments has the comments of fields whose tag is doc:"above": a line for each, of the field's
// name and its comment. Its test writes it: go test ./internal/operate -run TestComments -update.
//
//go:embed comments.txt
var comments string

const module = "github.com/onlyonce/onlyonce/"

var commentOf = sync.OnceValue(func() map[string]string {
	of := map[string]string{}
	for line := range strings.Lines(comments) {
		name, comment, _ := strings.Cut(strings.TrimSpace(line), "\t")
		of[name] = comment
	}
	return of
})

// Doc is the text about a field of a report, for which f.Index leads from t to it. The field's tag
// doc has it, or, if the text does not fit into a line, the comment above the field: doc:"above".
func Doc(t reflect.Type, f *reflect.StructField) string {
	doc := f.Tag.Get("doc")
	if doc != "above" {
		return doc
	}
	for _, part := range f.Index[:len(f.Index)-1] { // it may be of an embedded struct
		t = t.Field(part).Type
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
	}
	return commentOf()[strings.TrimPrefix(t.PkgPath(), module)+"."+t.Name()+"."+f.Name]
}
