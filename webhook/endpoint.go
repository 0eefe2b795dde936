package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/imagined"
	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/internal/ready"
	"github.com/onlyonce/onlyonce/internal/watch"
	"github.com/onlyonce/onlyonce/shard"
)

// Endpoint is one provider's webhooks from the request to the handler: an http.Handler that
// verifies and stores events, and an [Endpoint.Run] that applies them and forgets old ids. It is
// safe for concurrent use.
type Endpoint struct {
	pool      *primary.Pool
	cfg       Config
	source    *Source            // of the stored events, if the endpoint consumes them itself
	worker    *consumer.Consumer // or nil
	slots     chan struct{}      // a token for each verified event that is being processed
	heldBytes atomic.Int64       // of bodies that are held

	set    *shard.Set           // nil if there is one database
	name   string               // of the endpoint's database, if there are several
	shards map[string]*Endpoint // of an endpoint of several databases: one for each; it has no pool itself

	refusals pace.Seldom // log lines of refused requests
	begun    ready.Run
	watched  *watch.Clock // of Run
}

// New checks the configuration and returns every fault of it at once. It does not connect.
//
// With a [shard.Set] the endpoint stores and handles an event in the database of its place: its
// tenant (Config.Tenant), or the endpoint's name if it has none. If the place is moving, or if the
// set's function names a database where the place does not live, the endpoint does not store the
// event: its sender gets 503 and sends it again. Config.Sources must then be empty. With
// Config.Backfill each database lists the sender's events, and takes those of its places.
func New[D shard.Databases](db D, cfg Config) (*Endpoint, error) {
	if set, ok := any(db).(*shard.Set); ok {
		return newSharded(set, cfg)
	}
	pool, _ := any(db).(*pgxpool.Pool)
	return newEndpoint(pool, cfg)
}

// newEndpoint makes the endpoint of one database.
func newEndpoint(pool *pgxpool.Pool, cfg Config) (*Endpoint, error) {
	cfg.Logger = imagined.Logger(pool, cfg.Logger)
	cfg, err := cfg.withDefaults(pool)
	if err != nil {
		return nil, err
	}
	cfg.Hooks = cfg.Hooks.guarded(cfg.Logger)
	db := primary.Of(pool, cfg.Logger)
	e := &Endpoint{pool: db, cfg: cfg, slots: make(chan struct{}, cfg.MaxInFlight), watched: watch.New(db, watch.Often)}
	if cfg.Mode != Stored || cfg.Handler == nil {
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
// nil if the endpoint has none, because Handler is not set or runs inline. An endpoint of several
// databases has one in each of [Endpoint.Shards].
func (ep *Endpoint) Consumer() *consumer.Consumer { return ep.worker }

// Errors of a request that an Endpoint refused for another reason than a Verifier's check.
var (
	// ErrPending: an earlier copy of the event was not committed within Config.DuplicateWait. 503
	// (W9).
	ErrPending = errors.New("webhook: the first copy of the event is not committed yet")
	// ErrStore: the event is not known to be stored: the database refused it, or COMMIT got no
	// answer. 503 (W11).
	ErrStore = errors.New("webhook: the event is not known to be stored")
	// ErrHandler: an inline handler failed, and the event was not stored. 500 (W8).
	ErrHandler = errors.New("webhook: the handler failed")
	// ErrTenant: Config.Tenant panicked or returned an invalid name, and the event was not stored.
	// 500.
	ErrTenant = errors.New("webhook: Config.Tenant did not return a valid tenant")
	// ErrBusy: the endpoint already processes Config.MaxInFlight events, or holds Config.MaxBytes
	// of bodies. 503.
	ErrBusy = errors.New("webhook: too many requests at once (Config.MaxInFlight, Config.MaxBytes)")

	// ErrAside: today's events that were set aside, because their id or body came before, have
	// reached Config.MaxAside; this one was not stored. 503.
	ErrAside = errors.New("webhook: the events that were set aside today have reached Config.MaxAside")

	errMethod         = errors.New("webhook: the method is not POST")
	errBodyUnreadable = errors.New("webhook: the body could not be read")
	errBodySlow       = errors.New("webhook: the body arrived too slowly")
)

// ServeHTTP implements http.Handler. It answers 2xx only if the event or its first copy is
// committed, or if the request is a probe.
func (ep *Endpoint) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	start, hooks := time.Now(), &ep.cfg.Hooks
	begun := ReceiveStart{Endpoint: ep.cfg.Name, Provider: ep.cfg.verifier.scheme.Name}
	if hooks.ReceiveStart != nil {
		req = req.WithContext(hooks.ReceiveStart(req.Context(), begun))
	}
	e, a := ep.serve(w, req, start)
	if hooks.ReceiveEnd != nil {
		hooks.ReceiveEnd(req.Context(), ReceiveEnd{ReceiveStart: begun, Type: e.Type, ID: e.ID, Outcome: a.outcome, Status: a.status, Err: a.err, Duration: time.Since(start)})
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
		w.Header().Set("Connection", "close") // the rest of the body is not read
		return Event{}, ep.writeRefusal(w, statusOf(err), err)
	}
	body, held, status, err := ep.readBody(w, req, start.Add(ep.cfg.deadline))
	defer ep.heldBytes.Add(-held)
	if err != nil {
		w.Header().Set("Connection", "close")
		return Event{}, ep.writeRefusal(w, status, err)
	}
	e, err := ep.cfg.verifier.VerifyRequest(ctx, Request{Header: req.Header, Query: req.URL.RawQuery, Body: body})
	if err != nil {
		return Event{}, ep.writeRefusal(w, statusOf(err), err)
	}
	if e.Probe { // W13
		if err := ep.cfg.verifier.Confirm(ctx, e); err != nil {
			return *e, ep.writeRefusal(w, statusOf(err), err)
		}
		return *e, ep.writeAccepted(w, Probed, e.Challenge)
	}
	incoming, err := ep.newIncomingEvent(e, false)
	if err != nil {
		return *e, ep.writeRefusal(w, http.StatusInternalServerError, err)
	}
	select {
	case ep.slots <- struct{}{}:
		defer func() { <-ep.slots }()
	default:
		return *e, ep.writeRefusal(w, http.StatusServiceUnavailable, ErrBusy)
	}
	outcome, err := ep.acceptInShard(ctx, incoming)
	switch {
	case err == nil:
		return *e, ep.writeAccepted(w, outcome, "")
	case errors.Is(err, ErrHandler):
		return *e, ep.writeRefusal(w, http.StatusInternalServerError, err)
	default:
		return *e, ep.writeRefusal(w, http.StatusServiceUnavailable, err)
	}
}
