package webhook

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/onlyonce/onlyonce/internal/bodies"
)

// ServeHTTP implements http.Handler. It answers 2xx only if the event or its first copy is
// committed, or if the request is a probe (W1, W17).
func (ep *Endpoint) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	start := time.Now()
	hooks := &ep.cfg.Hooks
	begun := ReceiveStart{Endpoint: ep.cfg.Name, Provider: ep.cfg.verifier.scheme.Name}
	if hooks.ReceiveStart != nil {
		req = req.WithContext(hooks.ReceiveStart(req.Context(), begun))
	}
	e, a := ep.serve(w, req, start)
	if hooks.ReceiveEnd != nil {
		hooks.ReceiveEnd(req.Context(), ReceiveEnd{
			ReceiveStart: begun,
			Type:         e.Type,
			ID:           e.ID,
			Outcome:      a.outcome,
			Status:       a.status,
			Err:          a.err,
			Duration:     time.Since(start),
		})
	}
}

// serve verifies and accepts the event of a request that began at start, and answers it. The event
// is empty if the request was not verified.
func (ep *Endpoint) serve(w http.ResponseWriter, req *http.Request, start time.Time) (Event, answer) {
	if text, is, err := ep.cfg.verifier.Handshake(req.Method, req.URL.RawQuery); err != nil {
		return Event{}, ep.writeRefusal(w, statusOf(err), err)
	} else if is { // W13
		return Event{}, ep.writeAccepted(w, Probed, text)
	}
	if req.Method != http.MethodPost { // W1
		w.Header().Set("Allow", http.MethodPost)
		return Event{}, ep.writeRefusal(w, http.StatusMethodNotAllowed, errMethod)
	}
	// The work is detached from the client: if the client leaves, that must not undo what it may
	// have been promised. The deadline bounds how long the client waits (W12).
	ctx, cancel := context.WithDeadline(context.WithoutCancel(req.Context()), start.Add(ep.cfg.deadline))
	defer cancel()
	// W17: a request that has not been verified yet gets no slot, and its body no more time and
	// memory than it earns by arriving.
	if err := ep.cfg.verifier.checkHeaders(req.Header, req.URL.RawQuery, req.ContentLength); err != nil {
		bodies.Leave(w, req)
		return Event{}, ep.writeRefusal(w, statusOf(err), err)
	}
	body, held, status, err := ep.readBody(w, req, start.Add(ep.cfg.deadline))
	defer ep.bodies.Free(held)
	if err != nil {
		bodies.Leave(w, req)
		return Event{}, ep.writeRefusal(w, status, err)
	}
	e, err := ep.cfg.verifier.verifyHTTP(ctx, req, body)
	if err != nil {
		return Event{}, ep.writeRefusal(w, statusOf(err), err)
	}
	if e.Probe { // W13
		if err := ep.cfg.verifier.Confirm(ctx, e); err != nil {
			return *e, ep.writeRefusal(w, statusOf(err), err)
		}
		return *e, ep.writeAccepted(w, Probed, e.Challenge)
	}
	incoming, err := ep.newIncomingEvent(ctx, e, false)
	if err != nil {
		return *e, ep.writeRefusal(w, http.StatusInternalServerError, err)
	}
	select {
	case ep.slots <- struct{}{}:
		defer func() { <-ep.slots }()
	default:
		return *e, ep.writeRefusal(w, http.StatusServiceUnavailable, ErrBusy)
	}
	outcome, err := ep.accept(ctx, incoming)
	switch {
	case err == nil:
		return *e, ep.writeAccepted(w, outcome, "")
	case errors.Is(err, ErrHandler):
		return *e, ep.writeRefusal(w, http.StatusInternalServerError, err)
	default:
		return *e, ep.writeRefusal(w, http.StatusServiceUnavailable, err)
	}
}
