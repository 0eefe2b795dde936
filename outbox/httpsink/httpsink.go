package httpsink

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"

	"github.com/onlyonce/onlyonce/internal/dialguard"
	"github.com/onlyonce/onlyonce/outbox"
)

// ErrAddress is wrapped by the error of a connection that was refused for its address; see
// Config.AllowPrivate. No byte was sent.
var ErrAddress = dialguard.ErrAddress

var _ outbox.Sink = (*Sink)(nil)

// Name returns Config.Name.
func (s *Sink) Name() string { return s.cfg.Name }

// Limits returns Config.KeyWindow and Config.Timeout.
func (s *Sink) Limits() outbox.Limits {
	return outbox.Limits{KeyWindow: s.cfg.KeyWindow, Timeout: s.cfg.Timeout}
}

// Close closes idle connections. The sink can still be used.
func (s *Sink) Close() { s.transport.CloseIdleConnections() }

// Send makes one attempt. It returns when the attempt has ended, at the latest after
// Config.Timeout.
func (s *Sink) Send(ctx context.Context, a *outbox.Attempt) outbox.Result {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	req, err := s.newRequest(ctx, a)
	if err != nil {
		// The row cannot be sent as it is, now or later, so no call is made.
		return unsent(outbox.Failure(redactQuoted(err), outbox.Permanent(err)))
	}
	if err := s.authorize(req); err != nil {
		// Calls are held as for a host that is down: a held call's window does not begin.
		return s.noteHealth(
			healthWithoutAnswer(ctx, err, true),
			unsent(outbox.Failure("authorization failed, no call was made", err)),
		)
	}
	g := &gate{mayStart: a.MayStart}
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: g.attach})
	// RoundTrip instead of a client's Do: it follows no redirects and keeps no cookies.
	resp, err := s.transport.RoundTrip(req.WithContext(ctx))
	var answer []byte
	if err == nil {
		defer resp.Body.Close()
		answer, err = readAnswer(resp)
	}
	if refused := g.refusal(); refused != nil {
		return s.noteHealth(healthWithoutAnswer(ctx, refused, g.sent()), g.failure(redactQuoted(refused), refused))
	}
	if err != nil {
		return s.noteHealth(healthWithoutAnswer(ctx, err, g.sent()), g.failure(s.describeFailure(ctx, err), err))
	}
	r := s.classify(Answer{Status: resp.StatusCode, Header: resp.Header, Body: answer}, a.Tenant)
	r = s.noteHealth(healthFromAnswer(resp, r), r)
	if a.Capture && r.Outcome == outbox.Delivered {
		r.Response = &outbox.Response{Status: resp.StatusCode, Header: s.capturedHeaders(resp.Header), Body: answer}
	}
	return r
}

// failure is the result of an attempt without a whole answer.
func (g *gate) failure(reason string, err error) outbox.Result {
	r := outbox.Failure(reason, err)
	if !g.sent() {
		return unsent(r)
	}
	return r
}

// unsent notes that no byte of an attempt has left, so that the remote cannot have applied it (O6).
func unsent(r outbox.Result) outbox.Result {
	r.Unseen = true
	if r.Outcome == outbox.Retry {
		r.Outcome = outbox.Postponed
	}
	return r
}

// errSwitched is the end of an answer 101, which the sink never asks for.
var errSwitched = errors.New("the answer breaks off: the remote switched protocols (101), which it was not asked for")

// readAnswer reads the body of an answer. After 101 Go's transport hands the connection over, and
// watches the context no more: a read of it would last until the remote closes (O18).
func readAnswer(resp *http.Response) ([]byte, error) {
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return nil, errSwitched
	}
	return io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
}

// capturedHeaders returns the headers of an answer that are captured with it.
func (s *Sink) capturedHeaders(h http.Header) http.Header {
	kept := http.Header{}
	for _, name := range s.cfg.CaptureHeaders {
		if v, there := h[http.CanonicalHeaderKey(name)]; there {
			kept[http.CanonicalHeaderKey(name)] = v
		}
	}
	return kept
}
