package client

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/onlyonce/onlyonce/internal/outcome"
	"github.com/onlyonce/onlyonce/internal/pace"
)

// Transport is an http.RoundTripper that makes each request one operation: it adds an idempotency
// key, and sends the request under that key and with the same bytes until it gets a final answer.
// It is safe for concurrent use.
type Transport struct {
	cfg    Config
	header string // canonical
}

// NewTransport returns a Transport. If the configuration is wrong, the error lists every fault and
// wraps [ErrConfig].
func NewTransport(cfg Config) (*Transport, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Transport{cfg: cfg, header: http.CanonicalHeaderKey(cfg.Header)}, nil
}

// RoundTrip returns the first final answer. If attempts or time run out, it returns the last
// answer, or a [*TransportError] if the last attempt got none. In both cases the outcome is
// unknown, and the caller may try again under the same key. If an attempt got no answer and a later
// one is refused, a [*TransportError] has that answer, because it does not say what became of the
// earlier attempt (O6). The key as it was sent is in Response.Request.Header.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if !slices.Contains(t.cfg.Methods, req.Method) {
		return t.cfg.Base.RoundTrip(req)
	}
	key, value, err := t.operationKey(req)
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err
	}
	body, err := loadBody(req, t.cfg.MaxBody)
	if err != nil {
		return nil, err
	}
	o := &operation{cfg: &t.cfg, key: key, body: body, deadline: time.Now().Add(t.cfg.TotalTime)}
	o.request = req.Clone(req.Context())
	o.request.Body = nil
	for name := range o.request.Header {
		if http.CanonicalHeaderKey(name) == t.header {
			delete(o.request.Header, name)
		}
	}
	if o.request.Header == nil {
		o.request.Header = http.Header{}
	}
	o.request.Header[t.header] = []string{value}
	o.backoff = backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(t.cfg.firstWait()),
		backoff.WithMaxInterval(t.cfg.MaxWait),
		backoff.WithMultiplier(2),
		backoff.WithMaxElapsedTime(0))
	return o.runAttempts(req.Context())
}

// CloseIdleConnections closes the idle connections of Base, if it has that method; http.Client
// calls it.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.cfg.Base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// operation is one operation and its attempts.
type operation struct {
	cfg      *Config
	key      string
	request  *http.Request // without its body; each attempt sends a copy
	body     *replayableBody
	deadline time.Time
	backoff  *backoff.ExponentialBackOff
	open     bool // an attempt may have been applied, and no answer has settled it
}

func (o *operation) runAttempts(ctx context.Context) (*http.Response, error) {
	for n := 1; ; n++ {
		started := AttemptStart{Key: o.key, Attempt: n, Request: o.request}
		attemptCtx := o.cfg.Hooks.emitStart(ctx, started)
		a := o.sendAttempt(attemptCtx)
		next, wait, again := o.planRetry(ctx, n, a)
		o.cfg.Hooks.emitEnd(attemptCtx, AttemptEnd{
			AttemptStart: started,
			Status:       a.status(),
			Err:          a.err,
			Again:        again,
			Wait:         wait,
		})
		switch {
		case again:
		case a.err != nil:
			return nil, &TransportError{Key: o.key, Attempts: n, Err: a.err}
		case next == outcome.Refused && o.open:
			return nil, &TransportError{Key: o.key, Attempts: n, Err: errRefusedLater, Response: a.inMemory()}
		default:
			return a.resp, nil
		}
		if !pace.Sleep(ctx, wait) {
			return nil, &TransportError{
				Key:      o.key,
				Attempts: n,
				Err:      fmt.Errorf("waiting for the next attempt: %w", context.Cause(ctx)),
			}
		}
	}
}
