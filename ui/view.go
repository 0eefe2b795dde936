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
		{"/events", "Events"}, {"/keys", "Keys"}, {"/audit", "Audit"}, {"/doctor", "Doctor"}}
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
func (v *visit) Operates() bool { return v.operates() }

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
	"text":    plain,
	"ago":     ago,
	"instant": instant,
	"size":    func(v any) string { f, _ := strconv.ParseFloat(plain(v), 64); return show.Size(f) },
	"tag":     tag,
	"count": func(n any, what string) string {
		i, _ := strconv.ParseInt(plain(n), 10, 64)
		return show.Count(i, what)
	},
	"rate": func(f float64) string {
		return strconv.FormatFloat(f, 'f', map[bool]int{true: 1, false: 0}[f < 10], 64)
	},
	"short": func(s string, most int) string { return show.FirstLine(s, most) },
	"deref": func(p *string) string { return plain(p) },
	"span":  func(seconds float64) string { return show.Span(show.Seconds(seconds)) },
	"dict":  dict,
	"now":   func() time.Time { return time.Now() },
}

// dict makes a map of names and values, for a part of a page.
func dict(pairs ...any) map[string]any {
	m := map[string]any{}
	for i := 0; i+1 < len(pairs); i += 2 {
		m[fmt.Sprint(pairs[i])] = pairs[i+1]
	}
	return m
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

// cell is a cell of a table. Its data-f and data-v are the field and the value as the JSON of the
// program onlyonce has them.
func cell(field string, v any) template.HTML {
	class, shown := "", template.HTML(template.HTMLEscapeString(plain(v))) //nolint:gosec // escaped
	switch v.(type) {
	case int, int16, int32, int64, *int32, *int64:
		class, shown = ` class="num"`, number(v)
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
		"waiting": "warn", "warn": "warn", "paused": "warn", "abandoned": "warn", "not listed": "warn", "left": "warn", "blocked": "mild",
		"retrying": "mild", "running": "mild", "replaying": "mild", "info": "mild", "pending": "mild",
	}[state]
	if class == "" {
		class = "quiet"
	}
	return template.HTML(`<span class="tag ` + class + `">` + template.HTMLEscapeString(state) + `</span>`) //nolint:gosec // escaped
}
