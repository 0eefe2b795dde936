package operate

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// Each decision says what a person needs to know, and its tags are what they should be.
func TestDecisionsAreWhole(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, d := range All() {
		if names[d.Name] || d.Name == "" || d.Waits == "" || d.act == nil || d.would == nil || d.done == nil {
			t.Errorf("%q is not whole, or there are two", d.Name)
		}
		names[d.Name] = true
		if d.Summary == "" || !strings.Contains(d.Help, "\n\nExample") {
			t.Errorf("%s has no summary, or no example", d.Name)
		}
		if (d.Page == "") != (d.Title == "") || (d.Page == "") != (d.Means == "") {
			t.Errorf("%s is half in the console", d.Name)
		}
		known := []string{}
		for _, f := range d.Fields {
			if f.Doc == "" || slices.Contains(known, f.Name) {
				t.Errorf("%s: -%s has no text, or is there twice", d.Name, f.Name)
			}
			known = append(known, f.Name)
		}
		for _, name := range slices.Concat(append(d.needs, d.together)...) {
			if !slices.Contains(known, name) {
				t.Errorf("%s needs -%s, which it does not have", d.Name, name)
			}
		}
	}
}

// The JSON of a report is described by its tags, parts behind their field.
func TestJSON(t *testing.T) {
	t.Parallel()
	type part struct {
		N    int  `json:"n"`
		More bool `json:"more" doc:"see LongName"`
	}
	type report struct {
		ID       int        `json:"id"`
		At       *time.Time `json:"at,omitempty"`
		LongName *string    `json:"long_name" doc:"nil: none"`
		Parts    []part     `json:"parts" doc:"by number"`
		Last     *part      `json:"last"`
		Own      int        `json:"-"`
	}
	want := []string{"id, at", "long_name             null: none", "parts[]               by number", "  n", "  more                  see LongName", "last                  fields as of parts[]"}
	if got := JSON(reflect.TypeFor[report]()); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
