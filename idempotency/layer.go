package idempotency

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/origin"
	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/internal/ready"
)

// Layer answers a copy of a request with the first request's answer. Make one with [New], wrap
// handlers with [Layer.Handle], and run [Layer.Run] to purge expired records. It is safe for
// concurrent use.
type Layer struct {
	pool         *pgxpool.Pool
	cfg          Config
	fingerprints *fingerprinter
	cache        *responseCache // nil if there is no Config.Cache
	puts         chan struct{}  // a place for each record that is being put into it
	flights      flights
	seen         seen
	keeper       keeper
	begun        ready.Run
}

// New checks the configuration without connecting. If it is wrong, the error lists every fault,
// each with its field, and wraps [ErrConfig].
//
// The pool needs one connection for each handler that runs at the same time in transactional mode,
// and one more, which renews leases and looks up records.
func New(pool *pgxpool.Pool, cfg Config) (*Layer, error) {
	cfg, err := cfg.withDefaults()
	if pool == nil {
		err = errors.Join(err, fmt.Errorf("%w: pool: must not be nil", ErrConfig))
	} else if pool.Config().ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeSimpleProtocol {
		err = errors.Join(err, fmt.Errorf("%w: pool: the simple protocol (default_query_exec_mode=simple_protocol) is refused: it interpolates values into SQL; use exec behind PgBouncer", ErrConfig))
	}
	if err != nil {
		return nil, err
	}
	l := &Layer{pool: pool, cfg: cfg}
	if l.fingerprints, err = newFingerprinter(cfg.FingerprintKey, cfg.FingerprintKeys); err != nil {
		return nil, err
	}
	if cfg.Cache != nil {
		l.cache = newResponseCache(&cfg)
		l.puts = make(chan struct{}, maxPuts)
	}
	l.flights.running = make(map[[16]byte]*flight)
	l.flights.waiting = make(map[[16]byte]int)
	l.flights.tenants = make(map[string]*tenantLoad)
	l.keeper.layer = l
	return l, nil
}

// Handle wraps a handler. If the route is wrong, the error lists every fault, each with its field,
// and wraps [ErrConfig].
func (l *Layer) Handle(r Route, next http.Handler) (http.Handler, error) {
	r, err := r.withDefaults()
	if next == nil {
		err = errors.Join(err, fmt.Errorf("%w: Handle: the handler must not be nil", ErrConfig))
	}
	if err != nil {
		return nil, err
	}
	return &endpoint{layer: l, route: r, next: next, keys: keyRule{
		headers: append([]string{l.cfg.Header}, l.cfg.Aliases...), pointer: r.KeyPointer, strict: r.Strict, min: r.MinKey}}, nil
}

// MustHandle is Handle for routes that are constant in the program. It panics if the route is
// wrong.
func (l *Layer) MustHandle(r Route, next http.Handler) http.Handler {
	h, err := l.Handle(r, next)
	if err != nil {
		panic(err)
	}
	return h
}

// endpoint is the handler of one route.
type endpoint struct {
	layer *Layer
	route Route
	next  http.Handler
	keys  keyRule

	refusals pace.Seldom // log lines of refused requests
}

// ServeHTTP reads and checks the whole request before it touches the store: the body, its bounds,
// and the one key that it names.
func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	begun := time.Now()
	x := &exchange{endpoint: e, layer: e.layer, w: w}
	if !slices.Contains(e.route.Methods, r.Method) { // H1
		w.Header().Set(e.layer.cfg.StatusHeader, string(Bypassed))
		e.next.ServeHTTP(w, r)
		return
	}
	rep, status := reply{mark: Released}, 0 // if the handler panics or calls runtime.Goexit
	defer func() {
		if e.layer.cfg.Hooks.Served != nil {
			e.layer.cfg.Hooks.Served(Served{Pattern: e.route.Pattern, Method: r.Method, Tenant: x.scope.Tenant, Mark: rep.mark, Code: string(rep.code),
				Status: status, Runs: x.runs, Took: time.Since(begun)})
		}
	}()
	rep = x.serve(r)
	status = x.respond(rep)
	switch {
	case rep.code == codeScopeMissing: // anyone can send such requests
		e.refused(r.Method, status, rep.code, rep.failed.Error())
	case rep.failed != nil:
		e.layer.failed(rep.failed)
	case rep.mark == Rejected || rep.mark == Mismatch:
		e.refused(r.Method, status, rep.code, x.detail)
	}
}

// refused logs a request that the layer refused, for each route and code once in a while. A request
// whose key is in progress is no such thing: its client waits and asks again.
func (e *endpoint) refused(method string, status int, c code, detail string) {
	held, yes := e.refusals.Let(string(c), time.Now(), pace.Refusals)
	if !yes {
		return
	}
	text := problems[c].title
	if detail != "" {
		text += ": " + detail
	}
	e.layer.cfg.Logger.Warn("onlyonce: request refused", "route", e.route.Pattern, "method", method, "status", status, "code", string(c),
		"error", text, "not_logged", held)
}

// failed reports an error that cannot be returned to a caller.
func (l *Layer) failed(err error) {
	l.cfg.Logger.Error("onlyonce: idempotency", "error", err)
	if l.cfg.Hooks.Failed != nil {
		l.cfg.Hooks.Failed(err)
	}
}

// serve finds the request's scope and key, and runs it.
func (x *exchange) serve(r *http.Request) reply {
	e := x.endpoint
	body, code, err := e.read(x.w, r)
	if code != "" {
		return refusal(code, err)
	}
	scope, err := e.scope(r, body)
	if err != nil {
		return refusal(codeScopeMissing, fmt.Errorf("idempotency: Config.Scope: %w", err))
	}
	x.scope = scope
	x.request, x.body = r, body
	key, found, err := e.keys.find(r.Header, body)
	if err != nil {
		x.detail = err.Error()
		return refusal(codeKeyInvalid, nil)
	}
	x.key, x.keyed, x.ttl = key, found, e.route.TTL
	if !found && e.route.Key == KeyRequired {
		return refusal(codeKeyMissing, nil)
	}
	x.subject = e.subject(scope, r, body)
	if !found && e.route.Key == KeyDerived {
		sum, err := e.layer.fingerprints.sum(&x.subject)
		if err != nil {
			x.detail = err.Error()
			return refusal(codeBodyInvalid, nil)
		}
		x.key, x.derived, x.ttl = "derived:"+hex.EncodeToString(sum), true, e.route.DerivedTTL
	}
	x.ctx = context.WithoutCancel(r.Context()) // H11: the request goes on if the client disconnects
	_, _ = rand.Read(x.token[:])               // never fails
	if x.key == "" {
		return x.unprotected()
	}
	x.identify()
	if x.fingerprint, err = e.layer.fingerprints.sum(&x.subject); err != nil {
		x.detail = err.Error()
		return refusal(codeBodyInvalid, nil)
	}
	return x.once()
}

// read returns the body, up to Route.MaxBody, and ignores Content-Length for that (H6).
//
// Middleware around the layer may have read the body already. For example ParseForm passes a parsed
// form on to the handler, but its bytes are gone, and the layer would take every form for the same
// empty request. Such a request is refused.
func (e *endpoint) read(w http.ResponseWriter, r *http.Request) (body []byte, c code, err error) {
	if r.Body != nil && r.Body != http.NoBody {
		body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, int64(e.route.MaxBody)))
	}
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, codeRequestTooLarge, nil
	case err != nil:
		return nil, codeBodyUnreadable, nil //nolint:nilerr // the client's fault; the code is enough
	case int64(len(body)) < r.ContentLength || len(body) == 0 && (len(r.PostForm) > 0 || r.MultipartForm != nil):
		return nil, codeBodyConsumed, fmt.Errorf("%w: %d bytes are left of Content-Length %d", errConsumed, len(body), r.ContentLength)
	}
	return body, "", nil
}

// errConsumed is a fault of the program around the layer.
var errConsumed = errors.New("idempotency: the request's body was read before the layer got it (for example by ParseForm, FormValue or a logger): " +
	"move that inside the layer, or put the body back")

// scope returns the request's owner. Config.Scope gets a copy of the request with a body of its
// own.
func (e *endpoint) scope(r *http.Request, body []byte) (Scope, error) {
	own := r.WithContext(r.Context())
	own.Body = io.NopCloser(bytes.NewReader(body))
	defer func() {
		if own.MultipartForm != nil && own.MultipartForm != r.MultipartForm {
			_ = own.MultipartForm.RemoveAll()
		}
	}()
	scope, err := e.layer.cfg.Scope(own)
	if err == nil {
		err = scope.check()
	}
	return scope, err
}

// subject collects what the fingerprint covers.
func (e *endpoint) subject(scope Scope, r *http.Request, body []byte) subject {
	s := subject{Tenant: scope.Tenant, Scope: e.scopeName(r.Method, scope), Method: r.Method, Path: r.URL.EscapedPath(), Query: r.URL.RawQuery,
		Body: body, Mode: e.route.Fingerprint}
	s.MediaType, s.Coding = r.Header.Get("Content-Type"), strings.Join(r.Header.Values("Content-Encoding"), ",")
	for _, name := range e.route.FingerprintHeaders {
		if name == "Host" { // net/http moves it from the header to Request.Host
			s.Headers = append(s.Headers, [2]string{name, strings.ToLower(r.Host)})
			continue
		}
		for _, v := range r.Header.Values(name) {
			s.Headers = append(s.Headers, [2]string{name, v})
		}
	}
	for name, values := range r.Trailer { // they are complete, because the body has been read
		for _, v := range values {
			s.Trailers = append(s.Trailers, [2]string{name, v})
		}
	}
	return s
}

// scopeName returns the scope of a request's key in the database (H8). The principal is escaped, so
// that it cannot be mistaken for another part of the name.
func (e *endpoint) scopeName(method string, s Scope) string {
	name := "http " + method + " " + e.route.Pattern
	if s.Principal != "" {
		name += " " + url.PathEscape(s.Principal)
	}
	return name
}

const maxScopePart = 200

func (s Scope) check() error {
	for _, f := range [][2]string{{"Tenant", s.Tenant}, {"Principal", s.Principal}} {
		switch {
		case len(f[1]) > maxScopePart:
			return fmt.Errorf("%s has %d bytes, at most %d", f[0], len(f[1]), maxScopePart)
		case strings.ContainsRune(f[1], 0) || !utf8.ValidString(f[1]):
			return fmt.Errorf("%s is not UTF-8 without NUL", f[0])
		}
	}
	return nil
}

// identify computes the record's id, and the origin from which the keys of calls are derived.
func (x *exchange) identify() {
	h := x.request.Header
	x.origin = origin.Origin{Tenant: x.scope.Tenant, Scope: x.subject.Scope, ID: x.key, Trace: codec.JoinTrace(h.Get("traceparent"), h.Get("tracestate"))}
	x.id = dedupe.Key{Tenant: x.scope.Tenant, Scope: x.subject.Scope, ID: x.key}.Hash()
	x.subject.Record, x.subject.Key = x.id, x.key
}

// clone returns the request that the handler gets: with the body from its start, and with the
// exchange in its context.
func (x *exchange) clone(ctx context.Context) *http.Request {
	r := x.request.Clone(context.WithValue(context.WithValue(ctx, exchangeKey{}, x), runKey{}, x.runs))
	r.Body, r.ContentLength, r.TransferEncoding = io.NopCloser(bytes.NewReader(x.body)), int64(len(x.body)), nil
	if len(x.body) == 0 {
		r.Body = http.NoBody
	}
	return r
}
