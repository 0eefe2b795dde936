package operate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
)

// JSON describes the JSON of a report, by the tags json and [Doc] of its fields: a line for each
// field that has something to say, and one for those between them that do not. Fields of a part are
// indented behind it. A name that ends with "[]" is a list.
func JSON(report reflect.Type) []string {
	var lines, plain []string
	seen := map[reflect.Type]string{}
	var walk func(t reflect.Type, at, indent string)
	walk = func(t reflect.Type, at, indent string) {
		flush := func() {
			if len(plain) > 0 {
				lines = append(lines, indent+strings.Join(plain, ", "))
				plain = nil
			}
		}
		seen[t] = at
		names := jsonNames(t)
		for _, f := range reflect.VisibleFields(t) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			hidden := len(f.Index) > 1 && !f.IsExported()
			if hidden || name == "" || name == "-" {
				continue
			}
			of, many := elem(f.Type)
			if many {
				name += "[]"
			}
			doc := docOf(Doc(t, &f), names)
			part := of.Kind() == reflect.Struct &&
				of != reflect.TypeFor[time.Time]() &&
				!of.Implements(reflect.TypeFor[json.Marshaler]())
			if at, is := seen[of]; part && is {
				doc = strings.TrimPrefix(doc+"; fields as of "+cmp.Or(at, "the whole"), "; ")
				part = false
			}
			if doc == "" && !part {
				plain = append(plain, name)
				continue
			}
			flush()
			lines = append(lines, strings.TrimRight(fmt.Sprintf("%s%-20s  %s", indent, name, doc), " "))
			if part {
				walk(of, strings.TrimPrefix(at+"."+name, "."), indent+"  ")
			}
		}
		flush()
	}
	walk(report, "", "")
	return lines
}

// elem is the type of a value, or of those in a list.
func elem(t reflect.Type) (of reflect.Type, many bool) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8 {
		many = many || t.Kind() == reflect.Slice
		t = t.Elem()
	}
	return t, many
}

// jsonNames are the names of a struct's fields in JSON, by their names in Go.
func jsonNames(t reflect.Type) map[string]string {
	names := map[string]string{}
	for _, f := range reflect.VisibleFields(t) {
		names[f.Name], _, _ = strings.Cut(f.Tag.Get("json"), ",")
	}
	return names
}

// goName is the name of a field in a text about another one.
var goName = regexp.MustCompile(`\b[A-Z][a-z]+[A-Z]\w*\b`)

// docOf is a text about a field in the words of JSON.
func docOf(doc string, names map[string]string) string {
	doc = goName.ReplaceAllStringFunc(doc, func(name string) string {
		if in := names[name]; in != "" {
			return in
		}
		return name
	})
	words := strings.Fields(doc)
	for i, w := range words {
		if slices.Contains([]string{"nil", "Nil", "nil:", "Nil:"}, w) {
			words[i] = "null" + strings.TrimLeft(w, "nilN")
		}
	}
	return strings.Join(words, " ")
}
