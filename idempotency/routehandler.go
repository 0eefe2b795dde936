package idempotency

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/onlyonce/onlyonce/internal/pace"
)

// routeHandler is the handler of one route.
type routeHandler struct {
	layer   *Layer
	route   Route
	next    http.Handler
	keyRule keyRule

	refusals pace.Seldom // log lines of refused requests
}

// logRefusal logs a refused request, for each route and code at most once in pace.Refusals. A
// request whose key is in progress is not refused: its client waits and asks again.
func (rh *routeHandler) logRefusal(method string, status int, c code, detail string) {
	held, yes := rh.refusals.Let(string(c), time.Now(), pace.Refusals)
	if !yes {
		return
	}
	text := problems[c].title
	if detail != "" {
		text += ": " + detail
	}
	rh.layer.cfg.Logger.Warn("onlyonce: request refused", "route", rh.route.Pattern, "method", method, "status", status, "code", string(c),
		"error", text, "not_logged", held)
}

// readBody returns the body, up to Route.MaxBody, and ignores Content-Length for that (H6).
//
// Middleware around the layer may have read the body already. For example ParseForm passes a parsed
// form on to the handler, but its bytes are gone, and the layer would take every form for the same
// empty request. Such a request is refused. If the length is unknown (chunked, or HTTP/2 without
// Content-Length), an empty body that was sent looks the same and is refused too. White space
// counts as nothing, because a decoder stops before the line end that follows the value. If the
// length is unknown and only a part was read, the layer cannot see that.
func (rh *routeHandler) readBody(w http.ResponseWriter, r *http.Request) (body []byte, c code, err error) {
	if r.Body != nil && r.Body != http.NoBody {
		body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, int64(rh.route.MaxBody)))
	}
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, codeRequestTooLarge, nil
	case err != nil:
		return nil, codeBodyUnreadable, nil //nolint:nilerr // the client's fault; the code is enough
	case int64(len(body)) < r.ContentLength || r.ContentLength < 0 && len(bytes.TrimSpace(body)) == 0:
		return nil, codeBodyConsumed, fmt.Errorf("%w: %d bytes are left of Content-Length %d (-1: unknown)", errConsumed, len(body), r.ContentLength)
	}
	return body, "", nil
}

// errConsumed is a fault of the program around the layer.
var errConsumed = errors.New("idempotency: the request's body was read before the layer got it (for example by ParseForm, FormValue or a logger): " +
	"move that inside the layer, or put the body back")

// scopeOf returns the request's owner. Config.Scope gets a copy of the request with a body of its
// own, which is read when Scope reads it.
func (rh *routeHandler) scopeOf(r *http.Request, read func() ([]byte, code)) (Scope, error) {
	own := r.WithContext(r.Context())
	own.Body = io.NopCloser(&lateBody{read: read})
	defer func() {
		if own.MultipartForm != nil && own.MultipartForm != r.MultipartForm {
			_ = own.MultipartForm.RemoveAll()
		}
	}()
	scope, err := rh.layer.cfg.Scope(own)
	if err == nil {
		err = scope.check()
	}
	return scope, err
}

// lateBody is a body that is read at the first Read.
type lateBody struct {
	read func() ([]byte, code)
	rest *bytes.Reader // nil: not read
}

// Read implements io.Reader.
func (b *lateBody) Read(p []byte) (int, error) {
	if b.rest == nil {
		body, refused := b.read()
		if refused != "" {
			return 0, errors.New("idempotency: " + problems[refused].title)
		}
		b.rest = bytes.NewReader(body)
	}
	return b.rest.Read(p)
}

// fingerprintSubject collects what the fingerprint covers (H7).
func (rh *routeHandler) fingerprintSubject(scope Scope, r *http.Request, body []byte) fingerprintSubject {
	mode := fingerprintRaw
	if rh.route.FingerprintJSON {
		mode = fingerprintJSON
	}
	s := fingerprintSubject{Tenant: scope.Tenant, Scope: rh.scopeName(r.Method, scope), Method: r.Method, Path: r.URL.EscapedPath(), Query: r.URL.RawQuery,
		Body: body, Mode: mode}
	s.MediaType, s.Coding = r.Header.Get("Content-Type"), strings.Join(r.Header.Values("Content-Encoding"), ",")
	for _, name := range rh.route.FingerprintHeaders {
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
// that it cannot be mistaken for another part of the name (H2).
func (rh *routeHandler) scopeName(method string, s Scope) string {
	name := "http " + method + " " + rh.route.Pattern
	return withPrincipal(name, s)
}

// withPrincipal adds a scope's principal to the name of an operation.
func withPrincipal(name string, s Scope) string {
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
			return fmt.Errorf("%s: has %d bytes: must have at most %d", f[0], len(f[1]), maxScopePart)
		case strings.ContainsRune(f[1], 0) || !utf8.ValidString(f[1]):
			return fmt.Errorf("%s must be UTF-8 without NUL", f[0])
		}
	}
	return nil
}
