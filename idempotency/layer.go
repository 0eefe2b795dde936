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
)

// Layer answers a request that is sent again with the first one's answer. Make one with [New], put it around handlers with
// [Layer.Handle], and let [Layer.Run] purge what has expired. It is safe for concurrent use.
type Layer struct {
	pool    *pgxpool.Pool
	cfg     Config
	print   *fingerprinter
	cache   *tier         // nil: none
	puts    chan struct{} // records on their way to it
	flights flights
	seen    seen
	keeper  keeper
}

// New checks everything it can without a server, and returns every fault at once, each naming its field. The pool needs a
// connection for each handler that is to have a transaction at the same time, and one besides: leases are renewed, and records looked
// for, while all of those work.
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
	if l.print, err = newFingerprinter(cfg.FingerprintKey, cfg.FingerprintKeys); err != nil {
		return nil, err
	}
	if cfg.Cache != nil {
		l.cache = newTier(&cfg)
		l.puts = make(chan struct{}, puts)
	}
	l.flights.running = make(map[[16]byte]*flight)
	l.flights.waiting = make(map[[16]byte]int)
	l.flights.tenants = make(map[string]*tenantLoad)
	l.keeper.layer = l
	return l, nil
}

// Handle puts the layer around a handler, or says every fault of the route at once.
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

// MustHandle is Handle for routes that are written down in a program, where a fault is one of the program's: it panics.
func (l *Layer) MustHandle(r Route, next http.Handler) http.Handler {
	h, err := l.Handle(r, next)
	if err != nil {
		panic(err)
	}
	return h
}

// endpoint is one route's handler.
type endpoint struct {
	layer *Layer
	route Route
	next  http.Handler
	keys  keyRule
}

// ServeHTTP takes the steps in the order that the protocol asks for: nothing of the store is touched before the request is
// known to be whole, to name one key, and to be within its bounds.
func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	begun := time.Now()
	x := &exchange{endpoint: e, layer: e.layer, w: w}
	if !slices.Contains(e.route.Methods, r.Method) { // H1
		w.Header().Set(e.layer.cfg.StatusHeader, string(Bypassed))
		e.next.ServeHTTP(w, r)
		return
	}
	rep, status := reply{mark: Released}, 0 // of a handler that panics, or ends its goroutine
	defer func() {
		if e.layer.cfg.Hooks.Served != nil {
			e.layer.cfg.Hooks.Served(Served{Pattern: e.route.Pattern, Method: r.Method, Tenant: x.scope.Tenant, Mark: rep.mark, Code: string(rep.code),
				Status: status, Runs: x.runs, Took: time.Since(begun)})
		}
	}()
	rep = x.serve(r)
	status = x.respond(rep)
	if rep.failed != nil {
		e.layer.failed(rep.failed)
	}
}

// failed tells what nobody is there to be told.
func (l *Layer) failed(err error) {
	l.cfg.Logger.Error("onlyonce: idempotency", "error", err)
	if l.cfg.Hooks.Failed != nil {
		l.cfg.Hooks.Failed(err)
	}
}

// serve finds out whose request it is and what names it, and runs it.
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
		sum, err := e.layer.print.sum(&x.subject)
		if err != nil {
			x.detail = err.Error()
			return refusal(codeBodyInvalid, nil)
		}
		x.key, x.derived, x.ttl = "derived:"+hex.EncodeToString(sum), true, e.route.DerivedTTL
	}
	x.ctx = context.WithoutCancel(r.Context()) // H11: the client may go, the request stays
	_, _ = rand.Read(x.token[:])               // never fails
	if x.key == "" {
		return x.unprotected()
	}
	x.identify()
	if x.print, err = e.layer.print.sum(&x.subject); err != nil {
		x.detail = err.Error()
		return refusal(codeBodyInvalid, nil)
	}
	return x.once()
}

// read returns the body, whatever Content-Length says (H6). What stands around the layer may have read it before: a form that it has parsed is
// handed on to the handler, and the bytes are gone, so that the layer would take every form for the same empty request. That is refused.
func (e *endpoint) read(w http.ResponseWriter, r *http.Request) (body []byte, c code, err error) {
	if r.Body != nil && r.Body != http.NoBody {
		body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, int64(e.route.MaxBody)))
	}
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, codeRequestTooLarge, nil
	case err != nil:
		return nil, codeBodyUnreadable, nil //nolint:nilerr // the client's fault, which the code says
	case int64(len(body)) < r.ContentLength || len(body) == 0 && (len(r.PostForm) > 0 || r.MultipartForm != nil):
		return nil, codeBodyConsumed, fmt.Errorf("%w: %d bytes are left of Content-Length %d", errConsumed, len(body), r.ContentLength)
	}
	return body, "", nil
}

// errConsumed says what is wrong with the program around the layer.
var errConsumed = errors.New("idempotency: the request's body was read outside of the layer (ParseForm, FormValue or a logger, for example): " +
	"let that work behind the layer, or give the request its body back")

// scope asks whose request it is. Config.Scope gets a request of its own, which has the same header and a body to read.
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

// subject is what the fingerprint is made of.
func (e *endpoint) subject(scope Scope, r *http.Request, body []byte) subject {
	s := subject{Tenant: scope.Tenant, Scope: e.scopeName(r.Method, scope), Method: r.Method, Path: r.URL.EscapedPath(), Query: r.URL.RawQuery,
		Body: body, Mode: e.route.Fingerprint}
	s.MediaType, s.Coding = r.Header.Get("Content-Type"), strings.Join(r.Header.Values("Content-Encoding"), ",")
	for _, name := range e.route.FingerprintHeaders {
		if name == "Host" { // net/http takes it out of the header
			s.Headers = append(s.Headers, [2]string{name, strings.ToLower(r.Host)})
			continue
		}
		for _, v := range r.Header.Values(name) {
			s.Headers = append(s.Headers, [2]string{name, v})
		}
	}
	for name, values := range r.Trailer { // the body has been read: they are there, and the handler sees them
		for _, v := range values {
			s.Trailers = append(s.Trailers, [2]string{name, v})
		}
	}
	return s
}

// scopeName is the scope of a request's key in the database (H8). The principal is escaped, so that it ends the name and nothing
// in it can pass for another part.
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

// identify names the record, and what calls derive their keys from.
func (x *exchange) identify() {
	h := x.request.Header
	x.origin = origin.Origin{Tenant: x.scope.Tenant, Scope: x.subject.Scope, ID: x.key, Trace: codec.JoinTrace(h.Get("traceparent"), h.Get("tracestate"))}
	x.id = dedupe.Key{Tenant: x.scope.Tenant, Scope: x.subject.Scope, ID: x.key}.Hash()
	x.subject.Record, x.subject.Key = x.id, x.key
}

// clone is the request as the handler gets it: with its body from the start, and the exchange in its context.
func (x *exchange) clone(ctx context.Context) *http.Request {
	r := x.request.Clone(context.WithValue(context.WithValue(ctx, exchangeKey{}, x), runKey{}, x.runs))
	r.Body, r.ContentLength, r.TransferEncoding = io.NopCloser(bytes.NewReader(x.body)), int64(len(x.body)), nil
	if len(x.body) == 0 {
		r.Body = http.NoBody
	}
	return r
}
