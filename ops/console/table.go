package console

import (
	"cmp"
	"fmt"
	"html/template"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/internal/show"
)

// table is a table of a page.
type table struct {
	ID, Label string
	Heads     []head
	Rows      []tableRow
	Decides   bool // its rows have acts
	Stacks    bool // in a narrow window a row's values stand below each other: one of them is a sentence
}

type head struct {
	Name, Doc string
	Num       bool
}

type tableRow struct {
	Bad   bool
	Cells []template.HTML
	Acts  []act
}

// act is a link to the page of a decision.
type act struct{ Text, Href string }

// view is how rows of type T become a table.
type view[T any] struct {
	columns []column[T]
	bad     func(row *T) bool            // it is marked; nil: none is
	acts    func(v *visit, row *T) []act // the decisions that a person may make about it; nil: none
}

// viewOf is a view of columns alone.
func viewOf[T any](columns ...column[T]) view[T] { return view[T]{columns: columns} }

// table makes a table of rows. A column without a value is left out. It is nil if there are no
// rows.
func (w view[T]) table(v *visit, id string, rows []T) *table {
	if len(rows) == 0 {
		return nil
	}
	t := &table{ID: id, Label: heading(id), Stacks: slices.ContainsFunc(w.columns, column[T].long)}
	used := make([]bool, len(w.columns)) // columns that have a value in a row
	for i := range rows {
		row := &rows[i]
		var line tableRow
		for at := range w.columns {
			cell, empty := w.columns[at].cell(v, row, t.Stacks)
			line.Cells = append(line.Cells, cell)
			used[at] = used[at] || !empty
		}
		line.Bad = w.bad != nil && w.bad(row)
		if w.acts != nil {
			line.Acts = w.acts(v, row)
		}
		t.Decides = t.Decides || len(line.Acts) > 0
		t.Rows = append(t.Rows, line)
	}
	for at := range w.columns {
		c := &w.columns[at]
		t.Heads = append(t.Heads, head{Name: c.head, Doc: c.doc, Num: c.numeric(c.of(&rows[0]).Type())})
	}
	for at := len(used) - 1; at >= 0; at-- {
		if used[at] {
			continue
		}
		t.Heads = slices.Delete(t.Heads, at, at+1)
		for i := range t.Rows {
			t.Rows[i].Cells = slices.Delete(t.Rows[i].Cells, at, at+1)
		}
	}
	return t
}

// fact is a value of the row that a page is about.
type fact struct {
	Name, Doc string
	Value     template.HTML
}

// factsOf shows the values that a row has, in the order of the columns.
func factsOf[T any](v *visit, row *T, columns ...column[T]) []fact {
	var all []fact
	for i := range columns {
		c := &columns[i]
		value := c.of(row)
		if value.IsZero() && c.kind != aNumber {
			continue
		}
		if s := c.linked(v, row, value); s != none {
			all = append(all, fact{c.head, c.doc, s})
		}
	}
	return all
}

// number shows a number with its thousands apart.
func number(n int64) template.HTML {
	digits := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		digits = digits[1:]
		sign = "−"
	}
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "\u202f" + digits[at:]
	}
	return escaped(sign + digits)
}

// instant shows a time, to the second, and how long ago it was.
func instant(t time.Time) template.HTML {
	if t.IsZero() {
		return none
	}
	left := time.Until(t)
	away := show.Ago(-left.Seconds()) + " ago"
	if left > time.Second {
		away = "in " + show.Span(left)
	}
	begin := `<time datetime="` + escaped(t.UTC().Format(time.RFC3339)) + `" title="` + escaped(show.Instant(t)) + `">`
	return begin + escaped(away) + `</time>`
}

// classes decide the color of a state: what is wrong, what waits for a person, and what goes on by
// itself. All others are over, and quiet.
var classes = map[string]string{
	"halted":     "bad",
	"fail":       "bad",
	"reconcile":  "bad",
	"silent":     "bad",
	"waiting":    "warn",
	"suspended":  "warn",
	"warn":       "warn",
	"paused":     "warn",
	"abandoned":  "warn",
	"not listed": "warn",
	"no owner":   "warn",
	"left":       "warn",
	"blocked":    "mild",
	"retrying":   "mild",
	"running":    "mild",
	"claimed":    "mild",
	"leaving":    "mild",
	"replaying":  "mild",
	"info":       "mild",
	"pending":    "mild",
}

// tag shows a state.
func tag(state string) template.HTML {
	if state == "" {
		return ""
	}
	class := cmp.Or(classes[state], "quiet")
	return template.HTML(`<span class="tag `+class+`">`) + escaped(state) + `</span>` //nolint:gosec // escaped
}

// rate is how many there are a second.
func rate(f float64) string {
	digits := 0
	if f < 10 {
		digits = 1
	}
	return strings.TrimSuffix(strconv.FormatFloat(f, 'f', digits, 64), ".0")
}

// plain is a value as an address or a test has it: "" for nil.
func plain(v any) string {
	of := reflect.ValueOf(v)
	if of.Kind() == reflect.Pointer {
		if of.IsNil() {
			return ""
		}
		v = of.Elem().Interface()
	}
	switch v := v.(type) {
	case nil:
		return ""
	case time.Time:
		return v.UTC().Format(time.RFC3339Nano)
	}
	return fmt.Sprint(v)
}
