package idempotency

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/onlyonce/onlyonce/idempotency/internal/protocol"
	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/internal/rfc"
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
	rh.layer.cfg.Logger.Warn("onlyonce: request refused",
		"route", rh.route.Pattern, "method", method, "status", status, "code", string(c), "error", text,
		"not_logged", held)
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
	s.MediaType = r.Header.Get("Content-Type")
	s.Coding = strings.Join(r.Header.Values("Content-Encoding"), ",")
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

// keyRule describes where a request's key may be (H3) and how it is written (H4).
type keyRule struct {
	headers []string // canonical; the first is the primary one
	pointer string   // a JSON Pointer into the body (RFC 6901); "" if none
}

// requestKey is the key that the sources which were read name.
type requestKey struct {
	key  string
	from string // the source that the key is from; "" if none has one
}

// add adds what one more source names. Every source of a key is read, not only the first that has
// one (H3): a request with one key in the header and another in an older header names two
// operations. Whichever key the layer took, a retry that carries only the other one would run
// again.
func (k *requestKey) add(source, value string) error {
	if k.from == "" {
		k.key = value
		k.from = source
	}
	if value != k.key {
		return fmt.Errorf("%s and %s name different keys", k.from, source)
	}
	return nil
}

// inHeaders reads the headers that may carry the key. A second line of one header is refused even
// if it is equal: a proxy may join the lines with a comma, which makes another key.
//
// The error is for the client, and quotes nothing of the request.
func (k keyRule) inHeaders(h http.Header) (named requestKey, err error) {
	for _, name := range k.headers {
		value, has, err := k.header(h, name)
		if err == nil && has {
			err = named.add("header "+name, value)
		}
		if err != nil {
			return requestKey{}, err
		}
	}
	return named, nil
}

// inBody reads the body's member too, if the route has one. The error is as that of inHeaders.
func (k keyRule) inBody(named requestKey, body []byte) (requestKey, error) {
	if k.pointer == "" {
		return named, nil
	}
	value, has, err := keyInBody(body, k.pointer)
	if err == nil && has {
		err = named.add("body member "+k.pointer, value)
	}
	return named, err
}

// header reads one of the headers. Header maps that were not filled by net/http may hold names in
// any case.
func (k keyRule) header(h http.Header, name string) (key string, has bool, err error) {
	var lines []string
	for n, values := range h {
		if http.CanonicalHeaderKey(n) == name {
			lines = append(lines, values...)
		}
	}
	switch len(lines) {
	case 0:
		return "", false, nil
	case 1:
	default:
		return "", false, fmt.Errorf("header %s occurs %d times, must occur once", name, len(lines))
	}
	if key, err = protocol.ParseKey(lines[0]); err != nil {
		return "", false, fmt.Errorf("header %s: the key %w", name, err)
	}
	return key, true, nil
}

// keyInBody returns the key in a body: the string that the pointer leads to, decoded. A body that
// is not JSON, or has no such member, has no key. A body that has the member twice is refused:
// parsers differ in which of the two they take, so that the handler might see another key than the
// one that was claimed.
func keyInBody(body []byte, pointer string) (key string, found bool, err error) {
	tokens, err := rfc.ParsePointer(pointer)
	if err != nil {
		return "", false, err // cannot fail: Handle has checked it
	}
	if !json.Valid(body) {
		return "", false, nil
	}
	raw := json.RawMessage(body)
	for _, token := range tokens {
		if raw, err = pointerStep(raw, token); raw == nil || err != nil {
			if err != nil {
				err = fmt.Errorf("body member %s: %w", pointer, err)
			}
			return "", false, err
		}
	}
	if raw = bytes.TrimSpace(raw); raw[0] != '"' {
		return "", false, fmt.Errorf("body member %s must be a string", pointer)
	}
	if err := json.Unmarshal(raw, &key); err != nil {
		return "", false, fmt.Errorf("body member %s must be a string", pointer)
	}
	if err := protocol.CheckKey(key); err != nil {
		return "", false, fmt.Errorf("body member %s: the key %w", pointer, err)
	}
	return key, true, nil
}

// pointerStep follows one token of the pointer in valid JSON. It returns nil if there is no such
// member.
func pointerStep(raw json.RawMessage, token string) (next json.RawMessage, err error) {
	in := json.NewDecoder(bytes.NewReader(raw))
	open, err := in.Token()
	if err != nil {
		return nil, err
	}
	index, isIndex := rfc.ParseIndex(token)
	for i := 0; in.More(); i++ {
		var here bool
		switch open {
		case json.Delim('{'):
			name, err := in.Token()
			if err != nil {
				return nil, err
			}
			here = name == token
		case json.Delim('['):
			here = isIndex && i == index
		}
		var value json.RawMessage
		if err := in.Decode(&value); err != nil {
			return nil, err
		}
		if here && next != nil {
			return nil, errors.New("a member on the path occurs twice")
		}
		if here {
			next = value
		}
	}
	return next, nil
}
