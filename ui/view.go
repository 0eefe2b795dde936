package ui

import (
	"bytes"
	"embed"
	"fmt"
	"hash/fnv"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/show"
)

//go:embed templates
var templateFiles embed.FS

// page is what a handler shows.
type page struct {
	File    string // the template
	Title   string
	Section string // of the navigation
	Live    bool   // the page refreshes itself
	State   asked  // of a live page
	Status  int    // of the answer. Defaults to 200.
	Data    any

	V *visit
}

// Sections are the links of the navigation.
func (p *page) Sections() [][2]string {
	return [][2]string{{"/", "Overview"}, {"/consumers", "Consumers"}, {"/parked", "Parked"}, {"/outbox", "Outbox"}, {"/requests", "Requests"},
		{"/events", "Events"}, {"/keys", "Keys"}, {"/places", "Places"}, {"/audit", "Audit"}, {"/doctor", "Doctor"}}
}

// parse reads the templates: each page with the layout.
func (c *console) parse() error {
	sum := fnv.New64a()
	err := fs.WalkDir(staticFiles, staticName, func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			var text []byte
			text, err = staticFiles.ReadFile(name)
			_, _ = sum.Write(text)
		}
		return err
	})
	if err != nil {
		return err
	}
	c.stamp = strconv.FormatUint(sum.Sum64(), 36)
	layout, err := template.New("layout.html").Funcs(functions).ParseFS(templateFiles, "templates/layout.html", "templates/parts.html")
	if err != nil {
		return err
	}
	files, err := fs.Glob(templateFiles, "templates/*.html")
	for _, f := range files {
		t := template.Must(layout.Clone())
		if t, err = t.ParseFS(templateFiles, f); err != nil {
			return err
		}
		c.pages[strings.TrimSuffix(path.Base(f), ".html")] = t
	}
	return err
}

// show writes the page.
func (v *visit) show(p page) {
	p.V = v
	var b bytes.Buffer
	if err := v.pages[p.File].ExecuteTemplate(&b, "layout.html", &p); err != nil {
		v.Logger.Error("onlyonce console: a page cannot be shown", "page", p.File, "error", err)
		http.Error(v.w, "The console failed: see the log of the program that serves it.", http.StatusInternalServerError)
		return
	}
	v.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if p.Status != 0 {
		v.w.WriteHeader(p.Status)
	}
	_, _ = b.WriteTo(v.w)
}

// fail shows that something did not work.
func (v *visit) fail(status int, text, remedy string) {
	v.show(page{File: "failed", Title: http.StatusText(status), Status: status, Data: map[string]string{"Text": text, "Remedy": remedy}})
}

// Link is the address of a page of this database, with names and values of its query. Empty values
// are left out.
func (v *visit) Link(page string, query ...any) string {
	base := v.Prefix
	if v.db != nil {
		base = v.db.Base
	}
	q := url.Values{}
	for i := 0; i+1 < len(query); i += 2 {
		if s := plain(query[i+1]); s != "" {
			q.Set(fmt.Sprint(query[i]), s)
		}
	}
	if len(q) > 0 {
		page += "?" + q.Encode()
	}
	return base + page
}

// Asset is the address of a script or style.
func (v *visit) Asset(name string) string {
	return v.Prefix + "/" + staticName + "/" + name + "?" + v.stamp
}

// Here is the address of the page as it is shown.
func (v *visit) Here() string {
	if v.db == nil {
		return v.Link("/")
	}
	here := v.db.Base + v.r.URL.Path
	if v.r.URL.RawQuery != "" {
		here += "?" + v.r.URL.RawQuery
	}
	return here
}

// Operates reports whether the page offers acts.
func (v *visit) Operates() bool { return v.operates() && !v.Standby() }

// Standby reports whether the database was a standby when it was last asked.
func (v *visit) Standby() bool {
	if v.db == nil {
		return false
	}
	s := v.db.live.status.last()
	return s != nil && s.Standby
}

// Actor is the person.
func (v *visit) Actor() string { return string(v.actor) }

// Database is the database of the page, nil for that of several.
func (v *visit) Database() *database { return v.db }

// Databases are all of them.
func (v *visit) Databases() []*database { return v.databases }

// Query is a value of the address.
func (v *visit) Query(name string) string { return v.r.URL.Query().Get(name) }

var functions = template.FuncMap{
	"cell":    cell,
	"n":       number,
	"place":   place,
	"text":    plain,
	"ago":     ago,
	"instant": instant,
	"size":    func(v any) string { f, _ := strconv.ParseFloat(plain(v), 64); return show.Size(f) },
	"tag":     tag,
	"count": func(n any, what string) string {
		i, _ := strconv.ParseInt(plain(n), 10, 64)
		return show.Count(i, what)
	},
	"rate":   rate,
	"change": change,
	"short":  func(s string, most int) string { return show.FirstLine(s, most) },
	"deref":  func(p *string) string { return plain(p) },
	"span":   func(seconds float64) string { return show.Span(show.Seconds(seconds)) },
	"dict":   dict,
	"words":  words,
	"remedy": remedyOf,
	"now":    func() time.Time { return time.Now() },
	"next":   operate.Next,
}

// rate is how many there are a second.
func rate(f float64) string {
	if f == 0 {
		return "0"
	}
	return strconv.FormatFloat(f, 'f', map[bool]int{true: 1, false: 0}[f < 10], 64)
}

// change is by how much something grows a second, or shrinks.
func change(f float64) string {
	switch {
	case f < 0:
		return "−" + rate(-f)
	case f > 0:
		return "+" + rate(f)
	}
	return "0"
}

// dict makes a map of names and values, for a part of a page.
func dict(pairs ...any) map[string]any {
	m := map[string]any{}
	for i := 0; i+1 < len(pairs); i += 2 {
		m[fmt.Sprint(pairs[i])] = pairs[i+1]
	}
	return m
}

// words shows a command. A line is broken between its words only: a browser would break after the
// hyphen of an option.
func words(command string) template.HTML {
	var b strings.Builder
	for i, word := range strings.Split(command, " ") {
		if i > 0 {
			b.WriteByte(' ')
		}
		if strings.Contains(word, "-") {
			word = `<span class="word">` + template.HTMLEscapeString(word) + `</span>`
		} else {
			word = template.HTMLEscapeString(word)
		}
		b.WriteString(word)
	}
	return template.HTML(b.String()) //nolint:gosec // escaped
}

// remedy is what to do, with the command in it.
type remedy struct {
	Before, Command, After string
}

// remedyOf finds the command of the program onlyonce in a sentence. It begins the sentence, or
// stands after a colon.
func remedyOf(sentence string) (r remedy) {
	const program = "onlyonce "
	at := strings.Index(sentence, ": "+program) + len(": ")
	switch {
	case strings.HasPrefix(sentence, program):
		at = 0
	case at < len(": "):
		return remedy{Before: sentence}
	}
	r.Before, r.Command = strings.TrimSuffix(sentence[:at], " "), sentence[at:]
	if end := strings.IndexAny(r.Command, ";("); end >= 0 {
		r.Command, r.After = strings.TrimSpace(r.Command[:end]), strings.TrimPrefix(r.Command[end:], "; ")
	}
	return r
}

// plain is a value as an address or a test has it: "" for nil.
func plain(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case *string:
		if v == nil {
			return ""
		}
		return *v
	case *int64:
		if v == nil {
			return ""
		}
		return strconv.FormatInt(*v, 10)
	case *int32:
		if v == nil {
			return ""
		}
		return strconv.FormatInt(int64(*v), 10)
	case *float64:
		if v == nil {
			return ""
		}
		return strconv.FormatFloat(*v, 'f', -1, 64)
	case time.Time:
		return v.UTC().Format(time.RFC3339Nano)
	case *time.Time:
		if v == nil {
			return ""
		}
		return plain(*v)
	}
	return fmt.Sprint(v)
}

// number shows a number with its thousands apart, "–" if it is not known.
func number(v any) template.HTML {
	s := plain(v)
	if s == "" {
		return `<span class="none">–</span>`
	}
	digits, sign := s, ""
	if strings.HasPrefix(s, "-") {
		digits, sign = s[1:], "−"
	}
	var b strings.Builder
	for i, r := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteString("\u202f")
		}
		b.WriteRune(r)
	}
	return template.HTML(template.HTMLEscapeString(sign + b.String())) //nolint:gosec // escaped
}

// place shows a number that names something, for example an offset: a person copies it into a
// command, so it has no spaces. "–" if it is not known.
func place(v any) template.HTML {
	if s := plain(v); s != "" {
		return template.HTML(template.HTMLEscapeString(s)) //nolint:gosec // escaped
	}
	return `<span class="none">–</span>`
}

// places are the fields whose numbers name something.
var places = map[string]bool{"id": true, "pid": true, "partition": true, "position": true, "offset": true, "epoch": true, "lane": true, "slot": true}

// cell is a cell of a table. Its data-f and data-v are the field and the value as the JSON of the
// program onlyonce has them.
func cell(field string, v any) template.HTML {
	class, shown := "", template.HTML(template.HTMLEscapeString(plain(v))) //nolint:gosec // escaped
	switch v.(type) {
	case int, int16, int32, int64, *int32, *int64:
		class, shown = ` class="num"`, number(v)
		if places[field] {
			shown = place(v)
		}
	case time.Time, *time.Time:
		shown = instant(v)
	case string, *string:
		if shown == "" {
			shown = `<span class="none">–</span>`
		}
	}
	return template.HTML(`<td` + class + ` data-f="` + template.HTMLEscapeString(field) + `" data-v="` + template.HTMLEscapeString(plain(v)) + `">` + string(shown) + `</td>`) //nolint:gosec // escaped
}

// instant shows a time, to the second, and how long ago it was.
func instant(v any) template.HTML {
	var t time.Time
	switch v := v.(type) {
	case time.Time:
		t = v
	case *time.Time:
		if v == nil {
			return `<span class="none">–</span>`
		}
		t = *v
	}
	if t.IsZero() {
		return `<span class="none">–</span>`
	}
	at := show.Instant(t)
	left := time.Until(t)
	away := show.Ago(-left.Seconds()) + " ago"
	if left > time.Second {
		away = "in " + show.Span(left)
	}
	return template.HTML(`<time datetime="` + t.UTC().Format(time.RFC3339) + `" title="` + at + `">` + away + `</time>`) //nolint:gosec // made of times
}

// ago shows an age in seconds, "–" if it is not known.
func ago(v any) template.HTML {
	s := plain(v)
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return `<span class="none">–</span>`
	}
	return template.HTML(show.Ago(f)) //nolint:gosec // digits and units
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
	return template.HTML(`<span class="tag ` + class + `">` + template.HTMLEscapeString(state) + `</span>`) //nolint:gosec // escaped
}
