package httpsink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/internal/frozen"
	"github.com/onlyonce/onlyonce/outbox"
)

// callRequest is what one attempt sends.
type callRequest struct {
	*http.Request
	key  string // as the profile writes it
	body []byte
}

// newRequest builds the request from the row. It applies the rules of Enqueue again, because the
// row may have been written in SQL (O12).
func (s *Sink) newRequest(ctx context.Context, a *outbox.Attempt) (*callRequest, error) {
	if err := frozen.Method(a.Method); err != nil {
		return nil, fmt.Errorf("method: %w", err)
	}
	if err := frozen.Target(a.Target); err != nil {
		return nil, fmt.Errorf("target: %w", err)
	}
	names, values, faults := frozen.Headers(a.Header)
	if len(faults) > 0 {
		return nil, fmt.Errorf("header: %w", faults[0])
	}
	header := http.Header{}
	for i := range names {
		header[names[i]] = append(header[names[i]], values[i])
	}
	for _, t := range frozen.Trace(header, a.Trace) {
		header.Set(t[0], t[1])
	}
	profile := s.cfg.Profile
	key, err := profile.formatKey(a.Key)
	if err != nil {
		return nil, err
	}
	if profile.Header != "" {
		if _, twice := header[profile.Header]; twice {
			return nil, fmt.Errorf("header: %s is the sink's key header", profile.Header)
		}
		header[profile.Header] = []string{key}
	}
	if name := http.CanonicalHeaderKey(s.cfg.RequestIDHeader); name != "" && header[name] == nil {
		header[name] = []string{uuid.NewString()}
	}
	body, err := profile.insertKey(a.Body, key)
	if err != nil {
		return nil, err
	}
	u, err := s.targetURL(a.Target)
	if err != nil {
		return nil, err
	}
	req := &http.Request{
		Method: a.Method, URL: u, Host: s.base.Host, Header: header,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
	return &callRequest{withBody(req.WithContext(ctx), body), key, body}, nil
}

// targetURL appends the target to the base URL with one slash between them, and checks that the
// result stays below the base URL.
func (s *Sink) targetURL(target string) (*url.URL, error) {
	raw := s.base.String()
	if strings.HasPrefix(target, "/") {
		raw = strings.TrimSuffix(raw, "/")
	}
	u, err := url.Parse(raw + target)
	if err != nil {
		return nil, errors.New("target: is not a path")
	}
	sameHost := u.Scheme == s.base.Scheme && u.Host == s.base.Host && u.User == nil
	if !sameHost || !strings.HasPrefix(u.Path, strings.TrimSuffix(s.base.Path, "/")) {
		return nil, errors.New("target: leaves the base URL")
	}
	return u, nil
}

// withBody sets a request's body in a form that Go's transport cannot send again by itself (O7). If
// a connection breaks after the request, the transport repeats a keyed POST whose body it can
// rewind, which would be an attempt that the journal does not know. The transport decides by
// GetBody or by an empty body; [gate] covers the latter.
func withBody(req *http.Request, body []byte) *http.Request {
	req.GetBody = nil
	req.ContentLength = int64(len(body))
	req.Body = http.NoBody // nil or an empty reader has no length for the transport
	if len(body) > 0 {
		req.Body = io.NopCloser(bytes.NewReader(body))
	}
	return req
}

// authorize lets Config.Authorize add to the request and checks that it only added. What identifies
// the call and what was enqueued must be the same in each attempt, whatever the secrets are by
// then (O12).
func (s *Sink) authorize(req *callRequest) error {
	if s.cfg.Authorize == nil {
		return nil
	}
	// Header's names are canonical.
	method := req.Method
	host := req.Host
	before := *req.URL
	header := req.Header.Clone()
	if err := s.cfg.Authorize(req.Request); err != nil {
		return err
	}
	framed := len(req.TransferEncoding) > 0 || len(req.Trailer) > 0
	sameMethod := req.Method == method && req.Host == host
	if framed || !sameMethod || !samePath(&before, req.URL) {
		return errors.New("httpsink: Authorize changed the method, the host, the path or the framing")
	}
	if !onlyAppendsToQuery(&before, req.URL) {
		return errors.New("httpsink: Authorize changed the query, which is the call's: it may append " +
			"parameters of other names to URL.RawQuery")
	}
	for name, values := range header { // including the key's
		if !slices.Equal(req.Header[name], values) {
			return fmt.Errorf("httpsink: Authorize changed the header %s, which is the call's", name)
		}
	}
	for name := range req.Header {
		// Headers are sent as written and read in any case.
		canonical := http.CanonicalHeaderKey(name)
		if _, ours := header[canonical]; ours && name != canonical || frozen.Framing(canonical) {
			return fmt.Errorf("httpsink: Authorize set the header %s, which is the call's or the connection's",
				canonical)
		}
	}
	withBody(req.Request, req.body) // Authorize may have read the body
	return nil
}

// onlyAppendsToQuery reports whether the query still begins with the enqueued one, byte for byte,
// followed only by parameters with other names. If a name occurred twice, the remote would decide
// which one counts.
func onlyAppendsToQuery(frozen, now *url.URL) bool {
	more, prefixed := strings.CutPrefix(now.RawQuery, frozen.RawQuery)
	switch {
	case !prefixed:
		return false
	case more == "":
		return now.ForceQuery == frozen.ForceQuery || now.RawQuery != ""
	case frozen.RawQuery == "":
		return true
	case more[0] != '&':
		return false
	}
	taken := queryNames(frozen.RawQuery)
	return !slices.ContainsFunc(queryNames(more), func(name string) bool {
		return slices.ContainsFunc(taken, func(t string) bool { return strings.EqualFold(t, name) })
	})
}

// queryNames returns the names in a query, decoded if possible. Some servers take ; for &.
func queryNames(query string) (names []string) {
	for _, pair := range strings.FieldsFunc(query, func(r rune) bool { return r == '&' || r == ';' }) {
		name, _, _ := strings.Cut(pair, "=")
		if decoded, err := url.QueryUnescape(name); err == nil {
			name = decoded
		}
		names = append(names, name)
	}
	return names
}

// samePath reports whether Authorize has left the address alone, but for its query.
func samePath(before, now *url.URL) bool {
	if now == nil || now.Scheme != before.Scheme || now.Host != before.Host {
		return false
	}
	return now.User == nil && now.Opaque == "" && now.EscapedPath() == before.EscapedPath()
}
