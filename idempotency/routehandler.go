package idempotency

import (
	"crypto/sha256"
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

// fingerprintSubject collects what the fingerprint covers (H7).
func (rh *routeHandler) fingerprintSubject(scope Scope, r *http.Request, body []byte) fingerprintSubject {
	mode := fingerprintRaw
	if rh.route.FingerprintJSON {
		mode = fingerprintJSON
	}
	if rh.route.FingerprintBodyOnly {
		mode |= fingerprintBodyOnly
	}
	s := fingerprintSubject{
		Tenant: scope.Tenant,
		Scope:  rh.scopeName(r, scope),
		Method: r.Method,
		Path:   r.URL.EscapedPath(),
		Query:  r.URL.RawQuery,
		Body:   body,
		Mode:   mode,
	}
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
func (rh *routeHandler) scopeName(r *http.Request, s Scope) string {
	place := rh.route.Pattern
	if rh.route.KeyPerPath {
		place = pathName(rh.route.Pattern, r.URL.EscapedPath())
	}
	return withPrincipal("http "+r.Method+" "+place, s)
}

// maxPathName is the longest path that is kept as it is.
const maxPathName = 200

// pathName names a path in a scope (H33). A long one is named by its hash: no path and no principal
// contains the question mark.
func pathName(pattern, path string) string {
	if len(path) <= maxPathName {
		return path
	}
	return fmt.Sprintf("%s?sha256=%x", pattern, sha256.Sum256([]byte(path)))
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
