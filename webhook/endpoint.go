package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/pace"
)

// Endpoint is one provider's webhooks from the request to the handler: an http.Handler that
// verifies and stores events, and a [Endpoint.Run] that applies them and forgets old ids. It is
// safe for concurrent use.
type Endpoint struct {
	pool   *pgxpool.Pool
	cfg    Config
	source *Source            // of the stored events, if the endpoint consumes them itself
	worker *consumer.Consumer // or nil
	slots  chan struct{}      // a token for each verified event that is being processed
	bytes  atomic.Int64       // of bodies that are held

	refusals pace.Seldom // log lines of refused requests
}

// New checks the configuration and returns every fault of it at once. It does not connect.
func New(pool *pgxpool.Pool, cfg Config) (*Endpoint, error) {
	cfg, err := cfg.withDefaults(pool)
	if err != nil {
		return nil, err
	}
	e := &Endpoint{pool: pool, cfg: cfg, slots: make(chan struct{}, cfg.MaxInFlight)}
	if cfg.Mode != Inbox || cfg.Handler == nil {
		return e, nil
	}
	work, read := cfg.Consumer, cfg.Source
	if work.Scope == "" {
		work.Scope = Scope(cfg.Name)
	}
	if work.Logger == nil {
		work.Logger = cfg.Logger
	}
	read.Endpoints = []string{cfg.Name}
	if read.Group == "" {
		read.Group = work.Scope
	}
	if read.Partitions == 0 {
		read.Partitions = cfg.Partitions
	}
	if read.Logger == nil {
		read.Logger = cfg.Logger
	}
	if e.source, err = NewSource(pool, read); err != nil {
		return nil, err
	}
	if e.worker, err = consumer.New(pool, e.source, cfg.Handler, work); err != nil {
		return nil, fmt.Errorf("%w: Config.Consumer: %w", ErrConfig, err)
	}
	e.cfg.Sources = append(slices.Clone(cfg.Sources), e.source)
	return e, nil
}

// Consumer returns the consumer of the endpoint's stored events, for its status and its readiness;
// nil if the endpoint has none, because Handler is not set or runs inline.
func (r *Endpoint) Consumer() *consumer.Consumer { return r.worker }

// DuplicateHeader is set, to "true", in the answer to a copy of an event (W9).
const DuplicateHeader = "Webhook-Duplicate"

// Errors of a request that was refused for another reason than by a Verifier's check.
var (
	// ErrPending: an earlier copy of the event was not committed within Config.DuplicateWait. 503
	// (W9).
	ErrPending = errors.New("webhook: the first copy of the event is not committed yet")
	// ErrStore: the database did not take the event, or it is unknown whether it did. 503 (W11).
	ErrStore = errors.New("webhook: the database did not take the event")
	// ErrHandler: an inline handler failed; nothing of the event was stored. 500 (W8).
	ErrHandler = errors.New("webhook: the handler failed")
	// ErrTenant: Config.Tenant panicked or returned an invalid name; nothing of the event was
	// stored. 500.
	ErrTenant = errors.New("webhook: Config.Tenant did not name a tenant")
	// ErrBusy: Config.MaxInFlight events are being processed, or the bodies held at once have
	// reached Config.MaxBytes. 503.
	ErrBusy = errors.New("webhook: too many requests at once")

	// ErrAside: today's copies of bodies that were accepted before have reached Config.MaxAside;
	// this one was not stored. 503.
	ErrAside = errors.New("webhook: too many bytes of copies were set aside today")

	errMethod = errors.New("webhook: the method is not POST")
	errBody   = errors.New("webhook: the body could not be read")
	errSlow   = errors.New("webhook: the body did not come in time")
)

// ServeHTTP implements http.Handler. It answers 2xx only if the event or its first copy is
// committed, or if the request is a probe.
func (r *Endpoint) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	start := time.Now()
	if req.Method != http.MethodPost { // W1
		w.Header().Set("Allow", http.MethodPost)
		r.refuse(w, start, http.StatusMethodNotAllowed, errMethod)
		return
	}
	// The work is detached from the client: if the client leaves, that must not undo what it may
	// have been promised. The deadline bounds how long the client waits (W12).
	ctx, cancel := context.WithDeadline(context.WithoutCancel(req.Context()), start.Add(r.cfg.Deadline))
	defer cancel()
	// W17: a request that has not been verified yet gets no slot, and its body no more time and
	// memory than it earns by arriving.
	if err := r.cfg.verifier.expect(req.Header, req.ContentLength); err != nil {
		w.Header().Set("Connection", "close") // the rest of the body is not read
		r.refuse(w, start, statusOf(err), err)
		return
	}
	body, held, status, err := r.read(w, req, start.Add(r.cfg.Deadline))
	defer r.bytes.Add(-held)
	if err != nil {
		w.Header().Set("Connection", "close")
		r.refuse(w, start, status, err)
		return
	}
	e, err := r.cfg.verifier.Verify(req.Header, body)
	if err != nil {
		r.refuse(w, start, statusOf(err), err)
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
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	default:
		r.refuse(w, start, http.StatusServiceUnavailable, ErrBusy)
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

// statusOf returns the status for a verifier's refusal.
func statusOf(err error) int {
	var refused *Error
	if errors.As(err, &refused) {
		return refused.Status()
	}
	return http.StatusBadRequest
}

const (
	firstBytes = 4 << 10         // initial memory of a body
	bodyRate   = 32 << 10        // least bytes of a body in a second
	bodyGrace  = 5 * time.Second // lost packets are sent again after 1, 2, 4 s
)

// earned returns how long the endpoint may wait for a body in total, given the bytes that have
// arrived.
func earned(got int) time.Duration {
	return bodyGrace + time.Duration(got)*time.Second/bodyRate
}

// read reads the whole body, but no more than the verifier takes, whatever Content-Length says
// (W2). It takes memory as the bytes arrive and returns how much; the caller gives that back.
//
// A body that arrives more slowly than bodyRate on average is refused (W17). Time in which the
// endpoint did not wait for it does not count.
func (r *Endpoint) read(w http.ResponseWriter, req *http.Request, deadline time.Time) (body []byte, held int64, status int, err error) {
	most := int64(r.cfg.verifier.maxBody)
	longest := most + 1 // one more byte, to detect a body that is too long
	if req.ContentLength >= 0 {
		longest = min(req.ContentLength, most) + 1
	}
	control, in := http.NewResponseController(w), http.MaxBytesReader(w, req.Body, most)
	var waited time.Duration
	for err == nil {
		if len(body) == cap(body) {
			size := min(max(2*int64(cap(body)), firstBytes), longest)
			if size <= held || !r.take(size-held) {
				return nil, held, http.StatusServiceUnavailable, ErrBusy
			}
			held = size
			body = append(make([]byte, 0, size), body...)
		}
		left := earned(len(body)) - waited
		if left <= 0 {
			return nil, held, http.StatusRequestTimeout, errSlow
		}
		begun := time.Now()
		at := begun.Add(left)
		if deadline.Before(at) {
			at = deadline
		}
		_ = control.SetReadDeadline(at) // if the server supports it
		var n int
		n, err = in.Read(body[len(body):cap(body)])
		body, waited = body[:len(body)+n], waited+time.Since(begun)
	}
	var over *http.MaxBytesError
	var timeout net.Error
	switch {
	case errors.Is(err, io.EOF):
		_ = control.SetReadDeadline(deadline) // the server reads on, to notice that the client leaves
		return body, held, 0, nil
	case errors.As(err, &over):
		return nil, held, http.StatusRequestEntityTooLarge, &Error{Provider: r.cfg.verifier.scheme.Name, Check: ErrTooLarge}
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return nil, held, http.StatusRequestTimeout, errSlow
	}
	return nil, held, http.StatusBadRequest, errBody
}

// take reserves n bytes for a body. It returns false if Config.MaxBytes has no room for them.
func (r *Endpoint) take(n int64) bool {
	if r.bytes.Add(n) > r.cfg.MaxBytes {
		r.bytes.Add(-n)
		return false
	}
	return true
}

// answer writes a 200, with DuplicateHeader for a copy.
func (r *Endpoint) answer(w http.ResponseWriter, start time.Time, e *Event, outcome Outcome, body string) {
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
	_, _ = io.WriteString(w, body) // if this fails, the sender notices
	r.received(e, outcome, false, start)
}

func (r *Endpoint) received(e *Event, outcome Outcome, reconciled bool, start time.Time) {
	if r.cfg.Hooks.Received != nil {
		r.cfg.Hooks.Received(Received{Endpoint: r.cfg.Name, Provider: e.Provider, Type: e.Type, ID: e.ID, Outcome: outcome, Reconciled: reconciled,
			Duration: time.Since(start)})
	}
}

// kinds are the errors whose refusals are logged apart.
var kinds = []error{ErrTooLarge, ErrMalformed, ErrSignature, ErrStale, ErrPending, ErrStore, ErrHandler, ErrTenant, ErrBusy, ErrAside,
	errMethod, errBody, errSlow}

// kindOf names the kind of a refusal, for the bound on log lines.
func kindOf(err error) string {
	for _, kind := range kinds {
		if errors.Is(err, kind) {
			return kind.Error()
		}
	}
	return ""
}

// refuse writes a status and its name, and no more: the causes that share a status are for the
// operator's log only (W6).
func (r *Endpoint) refuse(w http.ResponseWriter, start time.Time, status int, err error) {
	w.Header().Set("Cache-Control", "no-store")
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", strconv.Itoa(int(r.cfg.RetryAfter/time.Second)))
	}
	http.Error(w, http.StatusText(status), status)
	if held, yes := r.refusals.Let(strconv.Itoa(status)+kindOf(err), time.Now(), pace.Refusals); yes {
		r.cfg.Logger.Warn("onlyonce: webhook refused", "endpoint", r.cfg.Name, "status", status, "error", err, "not_logged", held)
	}
	if r.cfg.Hooks.Refused != nil {
		r.cfg.Hooks.Refused(Refused{Endpoint: r.cfg.Name, Status: status, Err: err, Duration: time.Since(start)})
	}
}
