package console

import (
	"cmp"
	"fmt"
	"html/template"
	"reflect"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/show"
)

// column is a value of rows of type T: a column of a table, or a fact of a page about one row.
type column[T any] struct {
	value  func(row *T) any // a pointer to a field of the row, or what is shown
	head   string
	doc    string
	field  string // the field's name in JSON; empty: it has none
	points bool   // value returns a pointer to a field
	kind   kind
	page   func(v *visit, row *T) string // the address to which the value leads; nil: to none
	own    bool                          // that is the row's own page
}

// kind is how a value is shown, if its type alone does not say it.
type kind int

const (
	byType     kind = iota
	aNumber         // names something, for example an offset: a person copies it into a command, so it has no spaces
	aCode           // a text that is copied
	aState          // its color says whether it needs a person
	anError         // its beginning
	aSentence       // it may be long
	aCommand        // a sentence with commands
	someBytes       // a size
	perSecond       // a rate
	someStates      // several
)

// col is a column of what value returns. If that is a pointer to a field of the row, the field's
// name and its documentation in JSON are the column's.
func col[T any](value func(row *T) any) column[T] {
	c := column[T]{value: value}
	row := reflect.New(reflect.TypeFor[T]()).Elem()
	allocate(row)
	if f := fieldAt(row, value(row.Addr().Interface().(*T))); f != nil {
		c.points = true
		c.field = jsonName(f)
		c.doc = operate.Doc(row.Type(), f)
		c.head = heading(cmp.Or(c.field, f.Name))
	}
	return c
}

// jsonName is the name of a field in JSON, empty if it has none.
func jsonName(f *reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return strings.TrimPrefix(name, "-")
}

// allocate gives the embedded parts of a row that are pointers a value, so that their fields have
// addresses.
func allocate(row reflect.Value) {
	for i := range row.NumField() {
		f := row.Field(i)
		if !row.Type().Field(i).Anonymous {
			continue
		}
		if f.Kind() == reflect.Pointer && f.CanSet() {
			f.Set(reflect.New(f.Type().Elem()))
			f = f.Elem()
		}
		if f.Kind() == reflect.Struct {
			allocate(f)
		}
	}
}

// fieldAt is the field of a row to which at points; nil: it points to none.
func fieldAt(row reflect.Value, at any) *reflect.StructField {
	p := reflect.ValueOf(at)
	if p.Kind() != reflect.Pointer || p.IsNil() {
		return nil
	}
	for _, f := range reflect.VisibleFields(row.Type()) {
		of := row.FieldByIndex(f.Index)
		if f.Anonymous || of.Type() != p.Type().Elem() {
			continue
		}
		if of.Addr().UnsafePointer() == p.UnsafePointer() {
			return &f
		}
	}
	return nil
}

// called gives the column another heading.
func (c column[T]) called(head string) column[T] {
	c.head = head
	return c
}

// as says how the value is shown.
func (c column[T]) as(k kind) column[T] {
	c.kind = k
	return c
}

// leads has the value lead to a page.
func (c column[T]) leads(page func(v *visit, row *T) string) column[T] {
	c.page = page
	return c
}

// opens has the value lead to the row's own page.
func (c column[T]) opens(page func(v *visit, row *T) string) column[T] {
	c.page = page
	c.own = true
	return c
}

// of is the value of a row.
func (c *column[T]) of(row *T) reflect.Value {
	v := reflect.ValueOf(c.value(row))
	if c.points {
		return v.Elem()
	}
	return v
}

// heading is the name of a field for people.
func heading(name string) string {
	name = strings.ReplaceAll(strings.TrimSuffix(strings.TrimSuffix(name, "_at"), "_seconds"), "_", " ")
	return strings.ToUpper(name[:1]) + name[1:]
}

// base is the type of a value that may be there or not.
func base(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}

// numeric reports whether the column is aligned to the right.
func (c *column[T]) numeric(t reflect.Type) bool {
	of := base(t).Kind()
	return of >= reflect.Int && of <= reflect.Uint64 || c.kind == perSecond
}

// long reports whether the values may be sentences.
func (c column[T]) long() bool { return c.kind == anError || c.kind == aSentence || c.kind == aCommand }

// cell is a cell of a table. For a field in JSON, its data-f and data-v are the name and the value
// as the program onlyonce has them. In a table that stacks, its heading is in data-l.
func (c *column[T]) cell(v *visit, row *T, stacks bool) (cell template.HTML, empty bool) {
	value := c.of(row)
	text := c.linked(v, row, value)
	var class, data string
	switch {
	case c.numeric(value.Type()):
		class = ` class="num"`
	case c.kind == anError:
		class = ` class="error"`
	case c.kind == aSentence || c.kind == aCommand || value.Type() == reflect.TypeFor[payload]():
		class = ` class="text"`
	}
	of := base(value.Type()).Kind()
	if c.field != "" && of != reflect.Slice && of != reflect.Float64 { // ages differ at each look
		data = ` data-f="` + c.field + `" data-v="` + template.HTMLEscapeString(plain(value.Interface())) + `"`
	}
	empty = text == none || text == ""
	if stacks {
		data += ` role="cell" data-l="` + template.HTMLEscapeString(c.head) + `"`
	}
	return template.HTML(`<td`+class+data+`>`) + text + `</td>`, empty //nolint:gosec // escaped
}

// linked shows a value, as a link if it leads to a page.
func (c *column[T]) linked(v *visit, row *T, value reflect.Value) template.HTML {
	s := shown(c.kind, value)
	if c.page == nil || s == none {
		return s
	}
	href := c.page(v, row)
	if href == "" {
		return s
	}
	class := template.HTML("")
	if c.own {
		class = ` class="open"`
	}
	return `<a` + class + ` href="` + escaped(href) + `">` + s + `</a>`
}

// none is shown if there is no value.
const none = template.HTML(`<span class="none">–</span>`)

// shown shows a value.
func shown(k kind, v reflect.Value) template.HTML {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return none
		}
		v = v.Elem()
	}
	switch of := v.Interface().(type) {
	case template.HTML:
		return of
	case time.Time:
		return instant(of)
	case payload:
		if of.Hidden {
			return `<span class="hidden">` + escaped(show.Size(float64(of.Bytes))) + `, hidden</span>`
		}
		return escaped(of.Text)
	case bool:
		if of {
			return "yes"
		}
		return none
	case float64:
		if k == perSecond {
			return escaped(rate(of))
		}
		return escaped(show.Ago(of))
	}
	switch {
	case v.Kind() == reflect.Slice:
		return list(k, v)
	case v.CanInt() && k == someBytes:
		return escaped(show.Size(float64(v.Int())))
	case v.CanInt() && k != aNumber:
		return number(v.Int())
	}
	return shownText(k, plain(v.Interface()))
}

func shownText(k kind, text string) template.HTML {
	if text == "" {
		return none
	}
	switch k {
	case aState:
		return tag(text)
	case anError:
		return escaped(show.FirstLine(text, 120))
	case aCommand:
		return words(text)
	case aCode:
		return "<code>" + escaped(text) + "</code>"
	}
	return escaped(text)
}

func escaped(s string) template.HTML { return template.HTML(template.HTMLEscapeString(s)) } //nolint:gosec // escaped

// list shows several values.
func list(k kind, v reflect.Value) template.HTML {
	var all []string
	for i := range v.Len() {
		one := v.Index(i)
		if k == someStates {
			all = append(all, string(tag(one.String())))
			continue
		}
		text := plain(one.Interface())
		if s, is := one.Addr().Interface().(fmt.Stringer); is {
			text = s.String()
		}
		all = append(all, template.HTMLEscapeString(text))
	}
	switch {
	case len(all) == 0 && k != someStates:
		return none
	case k == someStates:
		return template.HTML(strings.Join(all, " ")) //nolint:gosec // escaped
	}
	return template.HTML(strings.Join(all, ", ")) //nolint:gosec // escaped
}
