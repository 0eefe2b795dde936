package webhook

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Receiver is the http.Handler of an endpoint. It is safe for concurrent use.
type Receiver struct {
	pool  *pgxpool.Pool
	cfg   ReceiverConfig
	slots chan struct{} // a token for each request in flight
}

// NewReceiver checks the configuration and returns every fault of it at once. It does not connect.
func NewReceiver(pool *pgxpool.Pool, cfg ReceiverConfig) (*Receiver, error) {
	cfg, err := cfg.withDefaults(pool)
	if err != nil {
		return nil, err
	}
	return &Receiver{pool: pool, cfg: cfg, slots: make(chan struct{}, cfg.MaxInFlight)}, nil
}

// DuplicateHeader is set, to "true", in the answer to a copy of an event (W9).
const DuplicateHeader = "Webhook-Duplicate"

// Refusals that are not a Verifier's.
var (
	// ErrPending: an uncommitted copy of the event was waited for, and did not end in time. 503 (W9).
	ErrPending = errors.New("webhook: the first copy of the event is not committed yet")
	// ErrStore: the database did not take the event, or nobody knows whether it did. 503 (W11).
	ErrStore = errors.New("webhook: the database did not take the event")
	// ErrHandler: an inline handler failed; nothing of the event was stored. 500 (W8).
	ErrHandler = errors.New("webhook: the handler failed")
	// ErrTenant: ReceiverConfig.Tenant panicked, or returned what is no tenant; nothing of the event was stored. 500.
	ErrTenant = errors.New("webhook: ReceiverConfig.Tenant did not name a tenant")
	// ErrBusy: ReceiverConfig.MaxInFlight requests are being worked on. 503.
	ErrBusy = errors.New("webhook: too many requests at once")

	errMethod = errors.New("webhook: the method is not POST")
	errBody   = errors.New("webhook: the body could not be read")
	errSlow   = errors.New("webhook: the body did not come in time")
)

// ServeHTTP implements http.Handler. No answer is 2xx unless the event, or its first copy, is committed, or is a probe.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	start := time.Now()
	if req.Method != http.MethodPost { // W1
		w.Header().Set("Allow", http.MethodPost)
		r.refuse(w, start, http.StatusMethodNotAllowed, errMethod)
		return
	}
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	default:
		r.refuse(w, start, http.StatusServiceUnavailable, ErrBusy)
		return
	}
	// Detached from the client, whose leaving must not undo what it may have been promised; bounded by what it waits for (W12).
	ctx, cancel := context.WithDeadline(context.WithoutCancel(req.Context()), start.Add(r.cfg.Deadline))
	defer cancel()
	body, status, err := r.read(w, req, start.Add(r.cfg.Deadline))
	if err != nil {
		r.refuse(w, start, status, err)
		return
	}
	e, err := r.cfg.Verifier.Verify(req.Header, body)
	if err != nil {
		status = http.StatusBadRequest
		var refused *Error
		if errors.As(err, &refused) {
			status = refused.Status()
		}
		r.refuse(w, start, status, err)
		return
	}
	if e.Probe { // W13
		r.answer(w, start, e, Probed, e.Challenge)
		return
	}
	i, err := r.item(e, false)
	if err != nil {
		r.refuse(w, start, http.StatusInternalServerError, err)
		return
	}
	outcome, err := r.accept(ctx, i)
	switch {
	case err == nil:
		r.answer(w, start, e, outcome, "")
	case errors.Is(err, ErrHandler):
		r.refuse(w, start, http.StatusInternalServerError, err)
	default:
		r.refuse(w, start, http.StatusServiceUnavailable, err)
	}
}

// read reads the body, all of it and no more than the verifier takes, whatever Content-Length says (W2).
func (r *Receiver) read(w http.ResponseWriter, req *http.Request, deadline time.Time) (body []byte, status int, err error) {
	most := int64(r.cfg.Verifier.maxBody)
	tooLarge := &Error{Provider: r.cfg.Verifier.scheme.Name, Check: ErrTooLarge}
	if req.ContentLength > most {
		w.Header().Set("Connection", "close") // what is still to come is not read
		return nil, http.StatusRequestEntityTooLarge, tooLarge
	}
	_ = http.NewResponseController(w).SetReadDeadline(deadline) // where the server can: a body that trickles holds a slot
	var b bytes.Buffer
	b.Grow(int(min(max(req.ContentLength, 0), 64<<10)) + bytes.MinRead) // what is only announced takes no memory
	_, err = b.ReadFrom(http.MaxBytesReader(w, req.Body, most))
	var over *http.MaxBytesError
	var timeout net.Error
	switch {
	case err == nil:
		return b.Bytes(), 0, nil
	case errors.As(err, &over):
		return nil, http.StatusRequestEntityTooLarge, tooLarge
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return nil, http.StatusRequestTimeout, errSlow
	}
	return nil, http.StatusBadRequest, errBody
}

// answer is 200, and tells copies.
func (r *Receiver) answer(w http.ResponseWriter, start time.Time, e *Event, outcome Outcome, body string) {
	switch outcome {
	case Duplicate, Divergent, SameBody:
		w.Header().Set(DuplicateHeader, "true")
	}
	w.Header().Set("Cache-Control", "no-store")
	if body != "" {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
	}
	w.WriteHeader(http.StatusOK)
	_, _ = io.WriteString(w, body) // the sender finds out
	r.received(e, outcome, false, start)
}

func (r *Receiver) received(e *Event, outcome Outcome, reconciled bool, start time.Time) {
	if r.cfg.Hooks.Received != nil {
		r.cfg.Hooks.Received(Received{Endpoint: r.cfg.Endpoint, Provider: e.Provider, Type: e.Type, ID: e.ID, Outcome: outcome, Reconciled: reconciled,
			Duration: time.Since(start)})
	}
}

// refuse answers with a status and its name, and no more: what differs between two causes of one status is for the operator (W6).
func (r *Receiver) refuse(w http.ResponseWriter, start time.Time, status int, err error) {
	w.Header().Set("Cache-Control", "no-store")
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", strconv.Itoa(int(r.cfg.RetryAfter/time.Second)))
	}
	http.Error(w, http.StatusText(status), status)
	if status >= 500 {
		r.cfg.Logger.Warn("onlyonce: webhook not taken", "endpoint", r.cfg.Endpoint, "status", status, "error", err)
	}
	if r.cfg.Hooks.Refused != nil {
		r.cfg.Hooks.Refused(Refused{Endpoint: r.cfg.Endpoint, Status: status, Err: err, Duration: time.Since(start)})
	}
}
