package idempotency

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/origin"
)

// Layer answers a copy of a request with the first request's answer. Make one with [New], wrap
// handlers with [Layer.Handle], and run [Layer.Run] to purge expired records. It is safe for
// concurrent use.
type Layer struct {
	pool         *pgxpool.Pool
	cfg          Config
	fingerprints *fingerprinter
	cache        *responseCache // nil if there is no Config.Cache
	cachePuts    chan struct{}  // a place for each record that is being put into it
	flights      flights
	recentKeys   recentKeys
	leases       leaseKeeper
}

// New checks the configuration without connecting. If it is wrong, the error lists every fault,
// each with its field, and wraps [ErrConfig].
//
// The pool needs one connection for each handler that runs at the same time in transactional mode,
// and one more, which renews leases and looks up records.
func New(pool *pgxpool.Pool, cfg Config) (*Layer, error) {
	cfg, err := cfg.withDefaults()
	if pool == nil {
		err = errors.Join(err, fmt.Errorf("%w: pool: must not be nil", ErrConfig))
	} else if pool.Config().ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeSimpleProtocol {
		err = errors.Join(err, fmt.Errorf("%w: pool: the simple protocol (default_query_exec_mode=simple_protocol) is refused: it interpolates values into SQL; use exec behind PgBouncer", ErrConfig))
	}
	if err != nil {
		return nil, err
	}
	l := &Layer{pool: pool, cfg: cfg}
	if l.fingerprints, err = newFingerprinter(cfg.FingerprintKey, cfg.FingerprintKeys); err != nil {
		return nil, err
	}
	if cfg.Cache != nil {
		l.cache = newResponseCache(&cfg)
		l.cachePuts = make(chan struct{}, maxCachePuts)
	}
	l.flights.byKey = make(map[[16]byte]*flight)
	l.flights.waiting = make(map[[16]byte]int)
	l.flights.tenants = make(map[string]*tenantLoad)
	l.leases.layer = l
	return l, nil
}

// Handle wraps a handler. If the route is wrong, the error lists every fault, each with its field,
// and wraps [ErrConfig].
func (l *Layer) Handle(r Route, next http.Handler) (http.Handler, error) {
	r, err := r.withDefaults()
	if next == nil {
		err = errors.Join(err, fmt.Errorf("%w: Handle: the handler must not be nil", ErrConfig))
	}
	if err != nil {
		return nil, err
	}
	return &routeHandler{layer: l, route: r, next: next, keyRule: keyRule{
		headers: append([]string{l.cfg.Header}, l.cfg.Aliases...), pointer: r.KeyPointer, strict: r.Strict, min: r.MinKey}}, nil
}

// MustHandle is Handle for routes that are constant in the program. It panics if the route is
// wrong.
func (l *Layer) MustHandle(r Route, next http.Handler) http.Handler {
	h, err := l.Handle(r, next)
	if err != nil {
		panic(err)
	}
	return h
}

// reportError reports an error that cannot be returned to a caller.
func (l *Layer) reportError(err error) {
	l.cfg.Logger.Error("onlyonce: idempotency", "error", err)
	if l.cfg.Hooks.Failed != nil {
		l.cfg.Hooks.Failed(err)
	}
}

// serveRequest finds the request's scope and key, and runs it.
func (x *servedRequest) serveRequest(r *http.Request) reply {
	e := x.handler
	body, code, err := e.readBody(x.w, r)
	if code != "" {
		return problemReply(code, err)
	}
	scope, err := e.scopeOf(r, body)
	if err != nil {
		return problemReply(codeScopeMissing, fmt.Errorf("idempotency: Config.Scope: %w", err))
	}
	x.scope = scope
	x.http, x.body = r, body
	key, found, err := e.keyRule.find(r.Header, body)
	if err != nil {
		x.detail = err.Error()
		return problemReply(codeKeyInvalid, nil)
	}
	x.key, x.keySent, x.ttl = key, found, e.route.TTL
	if !found && e.route.Key == KeyRequired {
		return problemReply(codeKeyMissing, nil)
	}
	x.subject = e.fingerprintSubject(scope, r, body)
	if !found && e.route.Key == KeyDerived {
		sum, err := e.layer.fingerprints.sum(&x.subject)
		if err != nil {
			x.detail = err.Error()
			return problemReply(codeBodyInvalid, nil)
		}
		x.key, x.keyDerived, x.ttl = "derived:"+hex.EncodeToString(sum), true, e.route.DerivedTTL
	}
	x.ctx = context.WithoutCancel(r.Context()) // H11: the request goes on if the client disconnects
	_, _ = rand.Read(x.token[:])               // never fails
	if x.key == "" {
		return x.serveUnkeyed()
	}
	x.setRecordID()
	if x.fingerprint, err = e.layer.fingerprints.sum(&x.subject); err != nil {
		x.detail = err.Error()
		return problemReply(codeBodyInvalid, nil)
	}
	return x.serveKeyed()
}

// setRecordID computes the record's id, and the origin from which the keys of calls are derived.
func (x *servedRequest) setRecordID() {
	h := x.http.Header
	x.origin = origin.Origin{Tenant: x.scope.Tenant, Scope: x.subject.Scope, ID: x.key, Trace: codec.JoinTrace(h.Get("traceparent"), h.Get("tracestate"))}
	x.id = dedupe.Key{Tenant: x.scope.Tenant, Scope: x.subject.Scope, ID: x.key}.Hash()
	x.subject.Record, x.subject.Key = x.id, x.key
}

// handlerRequest returns the request that the handler gets: with the body from its start, and with
// the exchange in its context.
func (x *servedRequest) handlerRequest(ctx context.Context) *http.Request {
	r := x.http.Clone(context.WithValue(context.WithValue(ctx, servedRequestKey{}, x), runKey{}, x.runs))
	r.Body, r.ContentLength, r.TransferEncoding = io.NopCloser(bytes.NewReader(x.body)), int64(len(x.body)), nil
	if len(x.body) == 0 {
		r.Body = http.NoBody
	}
	return r
}
