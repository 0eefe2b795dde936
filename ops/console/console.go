package console

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/ops"
)

//go:embed static
var staticFiles embed.FS

const (
	staticName = "static"         // the folder of scripts and styles
	patience   = 10 * time.Second // how long a page waits for its database
	decideWait = 5 * time.Minute  // how long an act may take, with its waits for the transactions of others
	countLimit = 2 * time.Second  // how long a question of a page may count rows
	atOnce     = 4                // questions to one database that run at once
	formLimit  = 256 << 10        // bytes of a form
	assetAge   = "max-age=86400"  // of scripts and styles; their addresses name their content
	policy     = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src " +
		"'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)

// console is the handler that New returns.
type console struct {
	Config
	guard     *http.CrossOriginProtection
	databases []*database // by name
	mux       *http.ServeMux
	pages     map[string]*template.Template // by the name of their file
	stamp     string                        // of scripts and styles
	guesses   pace.Seldom                   // log lines of wrong passwords
}

// database is one of the databases of a console.
type database struct {
	Name   string // empty: it is the only one
	Base   string // the path of its pages
	Server string // host, port and database, for people
	pool   *pgxpool.Pool
	places chan struct{} // one for each question that runs
	live   shared
	jobs   jobs
}

func newDatabase(name, base string, pool *pgxpool.Pool) *database {
	at := pool.Config().ConnConfig
	d := &database{Name: name, Base: base, pool: pool, places: make(chan struct{}, atOnce),
		Server: fmt.Sprintf("%s:%d/%s", at.Host, at.Port, at.Database)}
	d.live.begin()
	return d
}

// Title names the database for people.
func (d *database) Title() string { return cmp.Or(d.Name, d.Server) }

// ask runs a question, when fewer than atOnce others run.
func (d *database) ask(ctx context.Context, f func(ctx context.Context, db ops.DB) error) error {
	select {
	case d.places <- struct{}{}:
		defer func() { <-d.places }()
	case <-ctx.Done():
		return ctx.Err()
	}
	return f(ctx, d.pool)
}

// secure sets the headers that each answer has (U2).
func secure(h http.Header) {
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}

// visit is one request.
type visit struct {
	*console
	db     *database
	w      http.ResponseWriter
	r      *http.Request
	ctx    context.Context
	actor  Actor
	access Access
}

// ServeHTTP implements http.Handler (U1).
func (c *console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	secure(w.Header())
	path := strings.TrimPrefix(r.URL.Path, c.Prefix)
	cut := c.Prefix != "" && path != r.URL.Path
	if cut && path != "" && path[0] != '/' {
		path = r.URL.Path // for example /onlyonce2: the proxy has stripped the prefix
	}
	path = cmp.Or(path, "/")
	if rest, is := strings.CutPrefix(path, "/"+staticName+"/"); is {
		c.serveAsset(w, r, rest)
		return
	}
	v := &visit{console: c, w: w, r: r, ctx: r.Context()}
	var err error
	if v.actor, v.access, err = c.Authorize(r); err != nil || v.access < View {
		v.unauthorized(err)
		return
	}
	if c.guard.Check(r) != nil || embedded(r) {
		v.fail(http.StatusForbidden, "This request came from another site, and nothing was done.",
			"Open the console itself, and repeat it there.")
		return
	}
	if path, v.db = c.databaseOf(path); v.db == nil {
		v.fleet(path)
		return
	}
	c.dispatch(v, path)
}

// elsewhere reports whether a page of another site caused the request. A request whose browser does
// not say so counts as the console's own.
func elsewhere(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return site == "cross-site" || site == "same-site"
}

// embedded reports whether a page of another site loads this one as a part of itself, for example
// as an image. It cannot read it, but the browser sends the person's password along, and each page
// costs queries (U1).
func embedded(r *http.Request) bool {
	return elsewhere(r) && r.Header.Get("Sec-Fetch-Dest") != "document"
}

// driven reports whether a page of another site has opened this one without a person's click.
func driven(r *http.Request) bool { return elsewhere(r) && r.Header.Get("Sec-Fetch-User") != "?1" }

// dispatch calls the handler of the path, once the person may use it.
func (c *console) dispatch(v *visit, path string) {
	inner := v.r.Clone(context.WithValue(v.ctx, visitKey{}, v))
	inner.URL.Path = path
	inner.URL.RawPath = ""
	v.r = inner
	v.r.Body = http.MaxBytesReader(v.w, v.r.Body, formLimit)
	c.mux.ServeHTTP(v.w, inner)
}

type visitKey struct{}

// databaseOf returns the database that a path names, and the path within it. Nil: the path names
// none, and there are several.
func (c *console) databaseOf(path string) (string, *database) {
	if c.databases[0].Name == "" {
		return path, c.databases[0]
	}
	name, rest, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	for _, d := range c.databases {
		if d.Name == name {
			return "/" + rest, d
		}
	}
	return path, nil
}

func (c *console) serveAsset(w http.ResponseWriter, r *http.Request, name string) {
	if _, err := fs.Stat(staticFiles, staticName+"/"+name); err != nil ||
		r.Method != http.MethodGet && r.Method != http.MethodHead {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Cache-Control", assetAge)
	http.ServeFileFS(w, r, staticFiles, staticName+"/"+name)
}

func (v *visit) unauthorized(err error) {
	switch {
	case err == nil:
		http.Error(v.w, "You may not use this console.", http.StatusForbidden)
		return
	case errors.Is(err, errAskPassword):
		v.w.Header().Set("WWW-Authenticate", `Basic realm="onlyonce", charset="UTF-8"`)
		v.logGuess()
	case !errors.Is(err, errStranger):
		v.Logger.Warn("onlyonce: the console's Authorize refused a request", "error", err)
	}
	http.Error(v.w, "You are not signed in to this console.", http.StatusUnauthorized)
}

// logGuess logs that a name or a password was wrong, at most once in pace.Refusals. A browser's
// first request has none.
func (v *visit) logGuess() {
	if _, _, has := v.r.BasicAuth(); !has {
		return
	}
	if held, yes := v.guesses.Let("", time.Now(), pace.Refusals); yes {
		v.Logger.Warn("onlyonce: a name or a password for the console was wrong",
			"from", v.r.RemoteAddr, "not_logged", held)
	}
}

// operates reports whether the person may decide.
func (v *visit) operates() bool { return v.access >= Operate }

// reveals reports whether the person may see payloads of the kind (U2).
func (v *visit) reveals(k Kind) bool { return v.Bodies != nil && v.Bodies(v.actor, k) }

// failed shows an error.
func (v *visit) failed(err error) {
	status, text, remedy := v.describe(err)
	v.fail(status, text, remedy)
}

// describe turns an error into a status, what happened, and what to do. Errors of the database may
// name users and hosts: they go to the log.
func (v *visit) describe(err error) (status int, text, remedy string) {
	var e *ops.Error
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &e):
		statuses := map[error]int{
			ops.ErrInvalid:        http.StatusUnprocessableEntity,
			ops.ErrNotFound:       http.StatusNotFound,
			ops.ErrRefused:        http.StatusConflict,
			ops.ErrNothing:        http.StatusConflict,
			ops.ErrChanged:        http.StatusConflict,
			ops.ErrOutcomeUnknown: http.StatusBadGateway,
		}
		status = statuses[e.Kind]
		return status, sentence(operate.Flags(e.Reason, "", " ")), sentence(operate.Flags(e.Remedy, "", " "))
	case errors.Is(err, migrations.ErrSchema):
		return http.StatusServiceUnavailable,
			"The schema of this database does not fit this console.",
			sentence(err.Error())
	case errors.Is(err, errMissing):
		return http.StatusNotFound, "There is no such thing here.", "It may have been removed meanwhile, or " +
			"the address is wrong."
	case errors.Is(err, errStandby):
		return refusedByStandby()
	case errors.Is(err, errViewer):
		return http.StatusForbidden, "You may look, and not change anything.", ""
	case errors.As(err, new(*http.MaxBytesError)):
		return http.StatusRequestEntityTooLarge, "The form is too large.", ""
	}
	v.Logger.Warn("onlyonce: the database did not answer the console",
		"database", v.db.Title(), "path", v.r.URL.Path, "error", err)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return http.StatusGatewayTimeout, "The database gave no answer in time.", "Look again in a moment."
	case errors.As(err, &pg) && pg.Code == "42501":
		return http.StatusForbidden,
			"The role of the console may not do this: " + pg.Message + ".",
			"Connect it as a member of onlyonce_viewer to look, or of onlyonce_operator to decide too."
	case errors.As(err, &pg) && pg.Code == "25006":
		return refusedByStandby()
	case errors.As(err, &pg) && pg.Code == "40001":
		return http.StatusServiceUnavailable, "The server ended this question, because it had to go on with " +
			"the changes of its primary.", "Look again in a moment."
	case errors.As(err, &pg) && pg.Code == "55P03" && strings.HasPrefix(pg.Message, "onlyonce: "):
		// onlyonce.lock_owner
		return http.StatusConflict, sentence(
			strings.TrimPrefix(pg.Message, "onlyonce: "),
		), "Nothing was done. Pause the partition, and try again."
	case errors.As(err, &pg) && (pg.Code == "55P03" || pg.Code == "57014"):
		return http.StatusConflict, "Another transaction holds what this one needs, and nothing was done.", "Try again."
	case errors.As(err, &pg):
		return http.StatusBadGateway, "The database refused a statement: " + pg.Message + " (SQLSTATE " +
			pg.Code + ").", ""
	}
	return http.StatusBadGateway, "The database does not answer.", "See the log of the program that serves " +
		"this console."
}

var (
	errMissing = errors.New("not found")
	errViewer  = errors.New("a viewer")
	errStandby = errors.New("a standby")
)

func refusedByStandby() (status int, text, remedy string) {
	return http.StatusConflict,
		"This server is a standby, or set to read-only: nothing can be changed here.",
		"Decide on the primary."
}

// writable refuses an act over a standby before a person gives a reason. The answer may be some
// seconds old: the database itself refuses what it should not let through.
func (v *visit) writable() error {
	if s, _ := v.db.live.status.get(v.ctx, v.db); s != nil && s.Standby {
		return errStandby
	}
	return nil
}

// sentence begins with a capital letter and ends with a stop.
func sentence(s string) string {
	if s == "" {
		return ""
	}
	s = strings.ToUpper(s[:1]) + s[1:]
	if !strings.ContainsAny(s[len(s)-1:], ".!?") {
		s += "."
	}
	return s
}
