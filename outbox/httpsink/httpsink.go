package httpsink

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"

	"github.com/onlyonce/onlyonce/outbox"
)

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
	if err := s.authorize(req); err != nil {
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
