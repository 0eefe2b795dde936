package console

import (
	"fmt"
	"html/template"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

// table is a table of a page. It is made of a slice of structs.
type table struct {
	ID, Label string
	Heads     []head
	Rows      []tableRow
	Decides   bool // its rows have acts
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

// pagesOf are the pages about rows: the field whose value leads there, and the address. In it {F}
// is the value of the field F, and "F" or "name=F" behind the question mark that of a query.
var pagesOf = map[reflect.Type][2]string{
	reflect.TypeFor[ops.ParkedRow]():       {"id", "/parked/{id}"},
	reflect.TypeFor[reports.ParkedCount](): {"count", "/parked?kind&state&parked-for=reason&scope&sink&error"},
	reflect.TypeFor[reports.SinkRelays]():  {"sink", "/outbox?sink"},
	reflect.TypeFor[ops.ExplainedCall]():   {"key", "/calls/{key}"},
	reflect.TypeFor[ops.Request]():         {"id", "/explain?q=id"},
	reflect.TypeFor[sinkRow]():             {"sink", "/outbox?sink"},
	reflect.TypeFor[reports.PendingCall](): {"key", "/calls/{key}"},
	reflect.TypeFor[reports.Stream]():      {"topic", "/events?topic"},
	reflect.TypeFor[reports.Event]():       {"id", "/events/at?topic&partition&offset"},
	reflect.TypeFor[reports.AuditRow]():    {"id", "/audit/{id}"},
	reflect.TypeFor[reports.Frontier]():    {"partition", "/consumers/cursor?scope&topic&partition"},
	reflect.TypeFor[topic]():               {"Scope", "/consumers?scope=Scope&topic=Topic"},
	reflect.TypeFor[partition]():           {"partition", "/consumers/cursor?scope&topic&partition"},
	reflect.TypeFor[fleetRow]():            {"Database", "/{Database}/"},
}

// linksOf are the addresses to which values of a field lead in any row.
var linksOf = map[string]string{
	"sink": "/outbox?sink", "parked_id": "/parked/{parked_id}", "head": "/parked/{head}", "key": "/explain?q=key",
	"offset": "/explain?topic&partition&offset&scope",
}

// row is a struct whose fields are found by their names: in JSON, or else in Go, where it may be a
// method too.
type row struct{ reflect.Value }

func (r row) field(name string) (reflect.Value, *reflect.StructField) {
	if f := fieldOf(r.Type(), name); f != nil {
		return r.FieldByIndex(f.Index), f
	}
	return r.Addr().MethodByName(name).Call(nil)[0], nil
}

// fieldOf finds a field by its name in JSON, or else in Go. Nil: there is none.
func fieldOf(t reflect.Type, name string) *reflect.StructField {
	for _, f := range reflect.VisibleFields(t) {
		if jsonName(f) == name || f.Name == name && !f.Anonymous {
			return &f
		}
	}
	return nil
}

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return strings.TrimPrefix(name, "-")
}

// address fills in an address of pagesOf or linksOf. It is empty if the row has no such fields.
func (v *visit) address(pattern string, of row) string {
	path, query, _ := strings.Cut(pattern, "?")
	value := func(name string) string {
		if fieldOf(of.Type(), name) == nil {
			return ""
		}
		f, _ := of.field(name)
		return plain(f.Interface())
	}
	if before, rest, in := strings.Cut(path, "{"); in {
		name, after, _ := strings.Cut(rest, "}")
		path = before + url.PathEscape(value(name)) + after
	}
	var pairs []any
	for _, q := range strings.Split(query, "&") {
		name, field, other := strings.Cut(q, "=")
		if !other {
			field = name
		}
		if name == "offset" && (value("topic") == "" || value("partition") == "") {
			return ""
		}
		pairs = append(pairs, name, value(field))
	}
	return v.Link(path, pairs...)
}

// link is the page to which the value of a field of a row leads, and whether it is the row's own.
func (v *visit) link(of row, field string) (href string, own bool) {
	if page := pagesOf[of.Type()]; page[0] == field {
		return v.address(page[1], of), true
	}
	if pattern := linksOf[field]; pattern != "" {
		return v.address(pattern, of), false
	}
	return "", false
}

// tableOf makes a table of a slice of structs. columns are names of fields and methods, separated
// by spaces, each as name=Heading if it has another heading. A column without a value is left out.
// It is nil if there are no rows.
func (v *visit) tableOf(id string, rows any, columns string) *table {
	all := reflect.ValueOf(rows)
	if !all.IsValid() || all.Len() == 0 {
		return nil
	}
	t := &table{ID: id, Label: heading(id)}
	used := map[int]bool{} // columns that have a value in a row
	for i := range all.Len() {
		of := row{reflect.Indirect(all.Index(i))}
		var line tableRow
		for at, column := range strings.Fields(columns) {
			name, title, given := strings.Cut(column, "=")
			value, f := of.field(name)
			if i == 0 {
				h := head{Name: heading(name), Num: numeric(name, value.Type())}
				if given {
					h.Name = strings.ReplaceAll(title, "_", " ")
				}
				if f != nil {
					h.Doc = f.Tag.Get("doc")
				}
				t.Heads = append(t.Heads, h)
			}
			cell, empty := v.cell(of, name, value, f)
			line.Cells = append(line.Cells, cell)
			used[at] = used[at] || !empty
		}
		if bad := of.FieldByName("Bad"); bad.IsValid() {
			line.Bad = bad.Bool()
		}
		line.Acts = v.acts(of.Addr().Interface())
		t.Decides = t.Decides || len(line.Acts) > 0
		t.Rows = append(t.Rows, line)
	}
	for at := len(t.Heads) - 1; at >= 0; at-- {
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

// heading is the name of a field for people.
func heading(name string) string {
	name = strings.ReplaceAll(strings.TrimSuffix(strings.TrimSuffix(name, "_at"), "_seconds"), "_", " ")
	return strings.ToUpper(name[:1]) + name[1:]
}

// numeric reports whether a column is aligned to the right.
func numeric(name string, t reflect.Type) bool {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Kind() >= reflect.Int && t.Kind() <= reflect.Uint64 || t.Kind() == reflect.Float64 && name == "Rate"
}

// cell is a cell of a table. Of a field, its data-f and data-v are the name and the value as the
// JSON of the program onlyonce has them.
func (v *visit) cell(of row, name string, value reflect.Value, f *reflect.StructField) (cell template.HTML, empty bool) {
	var class, data string
	if numeric(name, value.Type()) {
		class = ` class="num"`
	}
	switch name {
	case "error":
		class = ` class="error"`
	case "text", "change", "means":
		class = ` class="text"`
	}
	if value.Type() == reflect.TypeFor[payload]() {
		class = ` class="text"`
	}
	kind := value.Type()
	if kind.Kind() == reflect.Pointer {
		kind = kind.Elem()
	}
	if f != nil && jsonName(*f) != "" && kind.Kind() != reflect.Slice && kind.Kind() != reflect.Float64 { // ages differ at each look
		data = ` data-f="` + name + `" data-v="` + template.HTMLEscapeString(plain(value.Interface())) + `"`
	}
	text := v.linked(of, name, value)
	return template.HTML(`<td`+class+data+`>`) + text + `</td>`, text == none || text == "" //nolint:gosec // escaped
}

// linked shows a value, as a link if it leads to a page.
func (v *visit) linked(of row, name string, value reflect.Value) template.HTML {
	s := shown(name, value)
	href, own := v.link(of, name)
	if href == "" || s == none {
		return s
	}
	class := ""
	if own {
		class = ` class="open"`
	}
	return template.HTML(`<a` + class + ` href="` + template.HTMLEscapeString(href) + `">` + string(s) + `</a>`) //nolint:gosec // escaped
}

// none is shown if there is no value.
const none = template.HTML(`<span class="none">–</span>`)

// shown shows the value of a field.
func shown(name string, v reflect.Value) template.HTML {
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
			return template.HTML(`<span class="hidden">` + show.Size(float64(of.Bytes)) + `, hidden</span>`) //nolint:gosec // digits and units
		}
		return escaped(of.Text)
	case bool:
		if of {
			return "yes"
		}
		return none
	case float64:
		if name == "Rate" {
			return escaped(rate(of))
		}
		return escaped(show.Ago(of))
	}
	switch {
	case v.Kind() == reflect.Slice:
		return list(name, v)
	case v.CanInt() && (name == "bytes" || strings.HasSuffix(name, "_bytes")):
		return escaped(show.Size(float64(v.Int())))
	case v.CanInt() && !named[name]:
		return number(v.Int())
	}
	text := plain(v.Interface())
	switch {
	case text == "":
		return none
	case name == "state" || name == "level":
		return tag(text)
	case name == "error":
		return escaped(show.FirstLine(text, 120))
	case name == "text" || name == "change": // with commands
		return words(text)
	case codes[name]:
		return "<code>" + escaped(text) + "</code>"
	}
	return escaped(text)
}

func escaped(s string) template.HTML { return template.HTML(template.HTMLEscapeString(s)) } //nolint:gosec // escaped

// list shows several values.
func list(name string, v reflect.Value) template.HTML {
	var all []string
	for i := range v.Len() {
		one := v.Index(i)
		if name == "Tags" {
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
	case len(all) == 0 && name != "Tags":
		return none
	case name == "Tags":
		return template.HTML(strings.Join(all, " ")) //nolint:gosec // escaped
	}
	return template.HTML(strings.Join(all, ", ")) //nolint:gosec // escaped
}

// named are the fields whose numbers name something, for example an offset: a person copies them
// into a command, so they have no spaces. codes are those whose texts are copied.
var (
	named = map[string]bool{"id": true, "pid": true, "partition": true, "position": true, "offset": true, "epoch": true, "lane": true, "slot": true, "parked_id": true, "head": true,
		"anchor_offset": true, "start_offset": true, "high_watermark": true, "last_stable": true, "row_id": true, "leader_epoch": true, "attempt_offset": true}
	codes = map[string]bool{"key": true, "order_key": true, "trace": true, "cluster_id": true, "topic_id": true, "first_key": true}
)

// fact is a field of the row that a page is about.
type fact struct {
	Name, Doc string
	Value     template.HTML
}

// factsOf shows the fields of a struct that have a value, in their order. without are those that it
// leaves out, separated by spaces.
func (v *visit) factsOf(of any, without string) []fact {
	r := row{reflect.ValueOf(of).Elem()}
	var all []fact
	for _, f := range reflect.VisibleFields(r.Type()) {
		name := jsonName(f)
		value := r.FieldByIndex(f.Index)
		whole := value.Type()
		if whole.Kind() == reflect.Pointer {
			whole = whole.Elem()
		}
		part := whole.Kind() == reflect.Struct && whole != reflect.TypeFor[time.Time]() || whole.Kind() == reflect.Slice && whole.Elem().Kind() != reflect.String // bytes too: they are private
		if f.Anonymous || name == "" || part || slices.Contains(strings.Fields(without), name) || value.IsZero() && !named[name] {
			continue
		}
		if s := v.linked(r, name, value); s != none {
			all = append(all, fact{heading(name), f.Tag.Get("doc"), s})
		}
	}
	return all
}

// acts are the decisions about a row that a person may make.
func (v *visit) acts(of any) []act {
	var all []act
	add := func(text, page string, query ...any) { all = append(all, act{text, v.Link("/act/"+page, query...)}) }
	if !v.Operates() {
		return nil
	}
	switch r := of.(type) {
	case *operate.ParkedDetail:
		switch {
		case r.SettledAt != nil:
			return nil
		case r.Kind == string(Call):
			if r.May(parked.SendAgain) {
				add("Redrive", "redrive", "id", r.ID)
			}
			if r.May(parked.VerifiedApplied) {
				add("The remote has applied it", "redrive", "id", r.ID, "verified-applied", "1")
				add("The remote has not applied it: send it again", "redrive", "id", r.ID, "verified-not-applied", "1")
			}
			if r.May(parked.AnotherKey) {
				add("Redrive under a new key", "redrive", "id", r.ID, "new-key", "1")
			}
		case r.State != "blocked":
			add("Redrive", "redrive", "id", r.ID)
		}
		add("Discard", "discard", "id", r.ID)
	case *sinkRow:
		if r.PausedAt != nil {
			add("Resume", "resume-sink", "sink", r.Sink)
		} else {
			add("Pause", "pause-sink", "sink", r.Sink)
		}
	case *ops.Request:
		for _, step := range r.Unknown {
			add("Resolve "+step, "resolve", "id", r.ID, "step", step)
		}
		if r.CompletedAt == nil && r.State != "running" {
			add("Close", "close", "id", r.ID)
		}
	}
	return all
}

// number shows a number with its thousands apart.
func number(n int64) template.HTML {
	digits, sign := strconv.FormatInt(n, 10), ""
	if n < 0 {
		digits, sign = digits[1:], "−"
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
	return template.HTML(`<time datetime="` + t.UTC().Format(time.RFC3339) + `" title="` + show.Instant(t) + `">` + away + `</time>`) //nolint:gosec // made of times
}

// tag shows a state. Its class decides the color: what waits for a person, what is wrong, what goes
// on by itself, and what is over.
func tag(state string) template.HTML {
	if state == "" {
		return ""
	}
	class := map[string]string{
		"halted": "bad", "fail": "bad", "reconcile": "bad", "silent": "bad",
		"waiting": "warn", "suspended": "warn", "warn": "warn", "paused": "warn", "abandoned": "warn", "not listed": "warn", "no owner": "warn", "left": "warn", "blocked": "mild",
		"retrying": "mild", "running": "mild", "claimed": "mild", "leaving": "mild", "replaying": "mild", "info": "mild", "pending": "mild",
	}[state]
	if class == "" {
		class = "quiet"
	}
	return template.HTML(`<span class="tag `+class+`">`) + escaped(state) + `</span>` //nolint:gosec // escaped
}

// rate is how many there are a second.
func rate(f float64) string {
	return strings.TrimSuffix(strconv.FormatFloat(f, 'f', map[bool]int{true: 1, false: 0}[f < 10], 64), ".0")
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
