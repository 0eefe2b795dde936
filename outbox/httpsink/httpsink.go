package httpsink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/internal/frozen"
)

// Config describes one remote.
type Config struct {
	// Name is what Call.Sink says. Required.
	Name string

	// BaseURL is where calls go: scheme, host and an optional path that Call.Target is added to. Required; no query, no
	// user and password. A row cannot make the sink call another host, nor leave the path.
	BaseURL string

	// KeyWindow is how long the remote remembers a key, by its documentation: 24 hours, often. [outbox.Forever] where it
	// never forgets. Required; see outbox.Limits for what a wrong value does.
	KeyWindow time.Duration

	// KeyHeader is the header that carries the key. Default "Idempotency-Key".
	KeyHeader string

	// QuotedKey sends the key as a string of RFC 9651 ("..." with the quotes), as
	// draft-ietf-httpapi-idempotency-key-header asks. Without it the bare UUID is sent, which is what remotes in the field
	// take (Stripe and Adyen among them); one that follows the draft strictly refuses the bare form.
	QuotedKey bool

	// Timeout bounds one attempt, from connecting to the last byte of the answer. Default 30 s, from 1 ms to 10 minutes.
	// Shorter than what the remote may take makes calls that it is still working on be sent again, which it
	// answers with 409, or with the first one's result.
	Timeout time.Duration

	// Authorize adds authentication to a request right before it is sent: a header, or parameters in the query. It may read
	// the request's body (to sign it) and its headers; the key, the method, the host and the path must stay as they
	// are. Its context ends with the attempt. An error puts the call off. Nil: nothing is added.
	Authorize func(*http.Request) error

	// Outcomes overrules what a status means: {401: outbox.Retry} for credentials that expire, {404: outbox.Delivered}
	// for a DELETE that was applied before. Without it 2xx is delivered; 408, 409, 425, 429 and 5xx are retried; all
	// else is rejected.
	Outcomes map[int]outbox.Outcome

	// Transport holds what connecting needs: certificates, a proxy, a dialer of your own. It is cloned, and used for HTTP/1.1
	// with a check on each write. Nil: a plain one without a proxy (libraries read no environment).
	Transport *http.Transport
}

// ErrConfig is wrapped by every error of New.
var ErrConfig = errors.New("httpsink: bad configuration")

// maxAnswer is how much of an answer is read. Within it an answer that breaks off is no answer; what is
// longer is cut off, and judged by its status.
const maxAnswer = 64 << 10

// Sink sends calls over HTTP. Make one with [New].
type Sink struct {
	cfg       Config
	base      *url.URL
	transport *http.Transport
}

var _ outbox.Sink = (*Sink)(nil)

// New checks the configuration and returns every fault of it at once. It does not connect.
func New(cfg Config) (*Sink, error) {
	var faults []error
	fault := func(field, format string, args ...any) {
		faults = append(faults, fmt.Errorf("%w: %s: %s", ErrConfig, field, fmt.Sprintf(format, args...)))
	}
	if cfg.Name == "" {
		fault("Name", "must not be empty: it is what Call.Sink says")
	}
	base, err := baseURL(cfg.BaseURL)
	if err != nil {
		fault("BaseURL", "%v", err)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 30 * time.Second
	}
	if cfg.Timeout < time.Millisecond || cfg.Timeout > 10*time.Minute {
		fault("Timeout", "%v is not from 1ms to 10m", cfg.Timeout)
	}
	if cfg.KeyWindow <= 0 {
		fault("KeyWindow", "must be set: how long the remote remembers a key, or outbox.Forever")
	}
	if cfg.KeyHeader == "" {
		cfg.KeyHeader = "Idempotency-Key"
	}
	if !frozen.Token(cfg.KeyHeader) {
		fault("KeyHeader", "%q is not a header name", cfg.KeyHeader)
	}
	cfg.KeyHeader = http.CanonicalHeaderKey(cfg.KeyHeader)
	for status, o := range cfg.Outcomes {
		if status < 200 || status > 599 {
			fault("Outcomes", "%d is not a status from 200 to 599", status)
		}
		if o != outbox.Delivered && o != outbox.Retry && o != outbox.Rejected {
			fault("Outcomes", "%d: %v is not an outcome", status, o)
		}
	}
	transport, err := gatedTransport(cfg.Transport)
	if err != nil {
		fault("Transport", "%v", err)
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return &Sink{cfg: cfg, base: base, transport: transport}, nil
}

func baseURL(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return nil, errors.New("is not a URL") // the error would quote it, and it may hold a password
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("must start with https:// or http://")
	case u.Hostname() == "":
		return nil, errors.New("must name a host")
	case u.User != nil:
		return nil, errors.New("must not hold a user or password: use Authorize")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.HasSuffix(s, "#"):
		return nil, errors.New("must not hold a query or fragment: Call.Target adds to its path")
	}
	if err := frozen.Target(u.EscapedPath()); err != nil {
		return nil, err
	}
	return u, nil
}

// Name is Config.Name.
func (s *Sink) Name() string { return s.cfg.Name }

// Limits are Config.KeyWindow and Config.Timeout.
func (s *Sink) Limits() outbox.Limits {
	return outbox.Limits{KeyWindow: s.cfg.KeyWindow, Timeout: s.cfg.Timeout}
}

// Close closes connections that are idle. The sink can still be used.
func (s *Sink) Close() { s.transport.CloseIdleConnections() }

// Send makes one attempt.
func (s *Sink) Send(ctx context.Context, d *outbox.Delivery) outbox.Result {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	req, err := s.request(ctx, d)
	if err != nil {
		// The row cannot be sent as it is, now or later: no call was made.
		return outbox.Reject(clean(err), err)
	}
	if err := s.authorize(req, d); err != nil {
		return outbox.RetryLater("authorization failed, no call was made", err)
	}
	g := &gate{may: d.MayStart}
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: g.attach})
	// RoundTrip and not a client's Do: it follows no redirects and keeps no cookies.
	resp, err := s.transport.RoundTrip(req.WithContext(ctx))
	if err == nil {
		defer resp.Body.Close()
		if _, err = io.CopyN(io.Discard, resp.Body, maxAnswer); errors.Is(err, io.EOF) {
			err = nil
		}
	}
	if refused := g.refused(); refused != nil {
		return outbox.RetryLater(clean(refused), refused)
	}
	if err != nil {
		return outbox.RetryLater(s.describe(ctx, err), err)
	}
	return s.judge(resp)
}

// request builds the request from what is frozen. It applies the rules of Enqueue again, because a row may have been
// written in SQL.
func (s *Sink) request(ctx context.Context, d *outbox.Delivery) (*http.Request, error) {
	if err := frozen.Method(d.Method); err != nil {
		return nil, fmt.Errorf("method: %w", err)
	}
	if err := frozen.Target(d.Target); err != nil {
		return nil, fmt.Errorf("target: %w", err)
	}
	names, values, faults := frozen.Headers(d.Header)
	if len(faults) > 0 {
		return nil, fmt.Errorf("header: %w", faults[0])
	}
	header := http.Header{}
	for i := range names {
		header[names[i]] = append(header[names[i]], values[i])
	}
	if _, twice := header[s.cfg.KeyHeader]; twice {
		return nil, fmt.Errorf("header: %s is the sink's key header", s.cfg.KeyHeader)
	}
	u, err := s.url(d.Target)
	if err != nil {
		return nil, err
	}
	header[s.cfg.KeyHeader] = []string{s.key(d)}
	req := &http.Request{
		Method: d.Method, URL: u, Host: s.base.Host, Header: header,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
	return withBody(req.WithContext(ctx), d.Body), nil
}

// url adds the target to the base URL with one slash between them, and looks whether that has left it.
func (s *Sink) url(target string) (*url.URL, error) {
	raw := s.base.String()
	if strings.HasPrefix(target, "/") {
		raw = strings.TrimSuffix(raw, "/")
	}
	u, err := url.Parse(raw + target)
	if err != nil {
		return nil, errors.New("target: is not a path")
	}
	if u.Scheme != s.base.Scheme || u.Host != s.base.Host || u.User != nil || !strings.HasPrefix(u.Path, strings.TrimSuffix(s.base.Path, "/")) {
		return nil, errors.New("target: leaves the base URL")
	}
	return u, nil
}

func (s *Sink) key(d *outbox.Delivery) string {
	if s.cfg.QuotedKey {
		return `"` + d.Key + `"` // a UUID holds nothing that must be escaped
	}
	return d.Key
}

// withBody gives a request its body in a form that Go's transport cannot send again by itself (O7). On a connection that
// dies after the request it resends a keyed POST whose body it can rewind: an attempt that nobody has journaled. Its test
// is GetBody, or a body that is empty; for the latter see [gate].
func withBody(req *http.Request, body []byte) *http.Request {
	req.GetBody = nil
	req.ContentLength = int64(len(body))
	req.Body = http.NoBody // and not nil or an empty reader, whose length the transport would not know
	if len(body) > 0 {
		req.Body = io.NopCloser(bytes.NewReader(body))
	}
	return req
}

// authorize lets Config.Authorize add to the request, and checks that it has added and not changed.
func (s *Sink) authorize(req *http.Request, d *outbox.Delivery) error {
	if s.cfg.Authorize == nil {
		return nil
	}
	before := *req.URL
	if err := s.cfg.Authorize(req); err != nil {
		return err
	}
	if req.Method != d.Method || req.Host != s.base.Host || !slices.Equal(req.Header[s.cfg.KeyHeader], []string{s.key(d)}) ||
		req.URL.Scheme != before.Scheme || req.URL.Host != before.Host || req.URL.EscapedPath() != before.EscapedPath() || req.URL.User != nil {
		return errors.New("httpsink: Authorize changed the method, the host, the path or the key")
	}
	withBody(req, d.Body) // it may have been read
	return nil
}
