package console

import (
	"bytes"
	"cmp"
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

	"github.com/onlyonce/onlyonce/internal/show"
)

//go:embed templates
var templateFiles embed.FS

// page is what a handler shows.
type page struct {
	File    string // the template. Defaults to that of a content.
	Title   string
	Section string // of the navigation
	Live    bool   // the page refreshes itself
	State   asked  // of an answer that others share
	Status  int    // of the answer. Defaults to 200.
	Data    any

	V *visit
}

// Stale reports whether the page shows an answer that may no longer be true.
func (p *page) Stale() bool { return p.State.Err != nil && !p.State.At.IsZero() }

// Sections are the links of the navigation.
func (p *page) Sections() [][2]string {
	return [][2]string{
		{"/", "Overview"}, {"/consumers", "Consumers"}, {"/parked", "Parked"},
		{"/outbox", "Outbox"}, {"/requests", "Requests"}, {"/events", "Events"}, {"/keys", "Keys"},
		{"/places", "Places"}, {"/audit", "Audit"}, {"/doctor", "Doctor"},
	}
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
	layout, err := template.New("layout.html").Funcs(functions).ParseFS(
		templateFiles,
		"templates/layout.html",
		"templates/parts.html",
	)
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
	if err := v.pages[cmp.Or(p.File, "page")].ExecuteTemplate(&b, "layout.html", &p); err != nil {
		v.Logger.Error("onlyonce: a page of the console cannot be shown", "page", p.File, "error", err)
		http.Error(v.w,
			"The console failed: see the log of the program that serves it.", http.StatusInternalServerError)
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
	title := http.StatusText(status)
	v.show(page{
		Title:  title,
		Status: status,
		Data: &content{
			Title:   title,
			Notices: []notice{{"bad", text, remedy}},
			Acts:    []act{{"Overview", v.Link("/")}},
		},
	})
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
	"n":       func(n int) template.HTML { return number(int64(n)) },
	"instant": instant,
	"tag":     tag,
	"words":   words,
	"size":    func(n int64) string { return show.Size(float64(n)) },
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
