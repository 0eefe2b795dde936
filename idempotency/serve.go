package idempotency

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/origin"
)

// servedRequest is one request that the layer serves, from its arrival to its answer; or one call
// of [Do], which has no w, http and body.
type servedRequest struct {
	handler *routeHandler
	layer   *Layer
	w       http.ResponseWriter
	http    *http.Request
	body    []byte
	caller  context.Context // ends when the client disconnects, or with the context of Do
	work    context.Context // of the handler: not cancelled if the client disconnects
	ctx     context.Context // of the layer's own statements: never cancelled
	perform func(run *handlerRun, ctx context.Context, rec *recorder)
	scope   Scope
	detail  string // of the problem that answers the request

	key     string // "" if the request has none
	derived bool   // the layer has made the key, see Route.DeriveKeyFor
	ownRecord
	subject fingerprintSubject
	origin  origin.Origin // from which the keys of the handler's calls are derived

	runs     int     // how often the handler ran
	flight   *flight // set while this request is the one of its key that this process works on
	onCommit func()  // nil if there is nothing to do
}

// ownRecord is the record that a request writes under its key.
type ownRecord struct {
	id          [16]byte
	token       uuid.UUID // random: two requests under one key have different tokens
	fingerprint []byte
	ttl         time.Duration
	expires     time.Time // set by the statement that completes the record
}

// setRecordID computes the record's id, and the origin from which the keys of calls are derived
// (H8).
func (req *servedRequest) setRecordID(trace string) {
	req.origin = origin.Origin{
		Tenant:  req.scope.Tenant,
		Scope:   req.subject.Scope,
		ID:      req.key,
		Trace:   trace,
		TraceOf: req.layer.cfg.Trace,
	}
	req.id = dedupe.Key{Tenant: req.scope.Tenant, Scope: req.subject.Scope, ID: req.key}.Hash()
	req.subject.Record = req.id
	req.subject.Key = req.key
}

// newRecorder makes the ResponseWriter for one run of the handler.
func (req *servedRequest) newRecorder(limit int) *recorder {
	if req.w == nil {
		return newRecorder(limit)
	}
	return newRecorderOver(limit, req.w.Header())
}

// bodyLimit returns how long an answer may be while its handler runs. One that is longer than
// Route.MaxResponse is judged afterwards.
func (req *servedRequest) bodyLimit() int {
	route := &req.handler.route
	unbounded := route.DiscardBody || route.AllowLargeOnce || route.Render != nil
	if req.key == "" || unbounded {
		return maxStored
	}
	return route.MaxResponse
}

// derivesCalls reports whether the keys of calls are made from the request's key. They must not be
// if the record expires long before the remote forgets the call (H26, H34).
func (req *servedRequest) derivesCalls() bool {
	return !req.handler.route.NoCalls && !req.derived
}

// home returns the tenant if it must live in the request's database, because there are several: nil
// if there is one (N2).
func (req *servedRequest) home() any {
	if req.layer.set == nil {
		return nil
	}
	return req.scope.Tenant
}

// ServeHTTP reads and checks the whole request before it looks for the key in the store: its scope,
// the one key that it names, and the body with its bounds (H1).
func (rh *routeHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	begun := time.Now()
	req := &servedRequest{handler: rh, layer: rh.layer, w: w}
	if !slices.Contains(rh.route.Methods, r.Method) { // H1
		w.Header().Set(headerStatus, string(Bypassed))
		rh.next.ServeHTTP(w, r)
		return
	}
	hooks := &rh.layer.cfg.Hooks
	started := ServeStart{Pattern: rh.route.Pattern, Method: r.Method}
	if hooks.ServeStart != nil {
		r = r.WithContext(hooks.ServeStart(r.Context(), started))
	}
	// if the handler panics or calls runtime.Goexit
	rep := reply{mark: Released}
	status := 0
	defer func() {
		if hooks.ServeEnd != nil {
			hooks.ServeEnd(r.Context(), ServeEnd{
				ServeStart: started,
				Tenant:     req.scope.Tenant,
				Outcome:    req.outcome(rep),
				Code:       string(rep.code),
				Status:     status,
				Runs:       req.runs,
				Took:       time.Since(begun),
			})
		}
	}()
	rep = req.serveRequest(r)
	status = req.writeReply(rep)
	switch {
	case rep.code == codeScopeMissing: // anyone can send such requests
		rh.logRefusal(r.Method, status, rep.code, rep.logged.Error())
	case rep.logged != nil:
		rh.layer.reportError(rep.logged)
	case rep.mark == Rejected || rep.mark == Mismatch:
		rh.logRefusal(r.Method, status, rep.code, req.detail)
	}
}

// serveRequest finds the request's scope and key, and runs it (H5).
func (req *servedRequest) serveRequest(r *http.Request) reply {
	handler := req.handler
	req.http = r
	body := &arrivingBody{handler: handler, w: req.w, http: r, room: handler.layer.unscoped}
	defer body.leave()
	scope, err := handler.scopeOf(r, body.read)
	if body.refused != "" {
		return problemReply(body.refused, body.err)
	}
	if err != nil {
		return problemReply(codeScopeMissing, fmt.Errorf("idempotency: Config.Scope: %w", err))
	}
	req.scope = scope
	req.ctx = context.WithoutCancel(r.Context()) // H11: the request goes on if the client disconnects
	named, err := handler.keyRule.inHeaders(r.Header)
	if err != nil {
		return req.refuseKey(codeKeyInvalid, err.Error())
	}
	needsKey := !handler.route.KeyOptional && !handler.derivesKey(scope)
	if needsKey && named.from == "" && handler.keyRule.pointer == "" {
		return req.refuseKeyless()
	}
	if req.layer, err = handler.layer.ofTenant(req.ctx, scope.Tenant); err != nil {
		req.layer = handler.layer
		return problemReply(codeStoreUnavailable, err)
	}
	flights := &req.layer.flights
	room, mayRun := flights.expectBody(scope.Tenant, req.layer.cfg.TenantLimit, req.layer.cfg.TenantBytes)
	if !mayRun {
		return problemReply(codeOverCapacity, nil)
	}
	body.room = room
	_, refused := body.read()
	flights.bodyEnded(scope.Tenant)
	if refused != "" {
		return problemReply(refused, body.err)
	}
	if !flights.admit(scope.Tenant, req.layer.cfg.TenantLimit) {
		return problemReply(codeOverCapacity, nil)
	}
	defer flights.leave(scope.Tenant)
	if named, err = handler.keyRule.inBody(named, body.bytes); err != nil {
		return req.refuseKey(codeKeyInvalid, err.Error())
	}
	if needsKey && named.from == "" {
		return req.refuseKeyless()
	}
	return req.serveComplete(r, named.key, body.bytes)
}

// refuseKey answers a request whose key is bad or missing.
func (req *servedRequest) refuseKey(c code, detail string) reply {
	req.detail = detail
	return problemReply(c, nil)
}

func (req *servedRequest) refuseKeyless() reply {
	return req.refuseKey(codeKeyMissing, "send a key in the header "+req.handler.keyRule.headers[0])
}

// serveComplete serves a request that was admitted, under its key if it has one.
func (req *servedRequest) serveComplete(r *http.Request, key string, body []byte) reply {
	handler := req.handler
	req.body = body
	req.caller = r.Context()
	req.perform = (*handlerRun).serveHandler
	req.key = key
	req.ttl = handler.route.TTL
	req.subject = handler.fingerprintSubject(req.scope, r, body)
	req.work = req.ctx
	_, _ = rand.Read(req.token[:]) // never fails
	var err error
	if req.key == "" && handler.derivesKey(req.scope) {
		err = req.deriveKey()
	}
	if err != nil {
		req.detail = err.Error()
		return problemReply(codeBodyInvalid, nil)
	}
	if req.key == "" {
		return req.serveUnkeyed()
	}
	req.setRecordID(codec.JoinTrace(r.Header.Get("Traceparent"), r.Header.Get("Tracestate")))
	if req.fingerprint, err = handler.layer.fingerprints.sum(&req.subject); err != nil {
		req.detail = err.Error()
		return problemReply(codeBodyInvalid, nil)
	}
	return req.serveKeyed()
}

// serveKeyed runs the request, which was admitted, or answers from the record of the first one.
func (req *servedRequest) serveKeyed() reply {
	flights := &req.layer.flights
	route := &req.handler.route
	deadline := time.Now().Add(route.Wait)
	for n := 0; ; n++ {
		rep, ahead := req.tryOnce()
		if rep.code != codeInProgress || route.Wait == 0 || time.Until(deadline) <= 0 {
			return rep
		}
		if !flights.wait(req.caller, req.id, req.scope.Tenant, ahead, n, deadline) {
			return rep
		}
	}
}

// tryOnce makes up to three checks, and the first that has an answer decides: whether another
// request of this process has the key, whether the store has a record under it, and whether this
// request can take it. Stored answers are read without taking the key, so that copies that arrive
// together do not wait for each other. If another request of this process has the key, ahead is
// closed when that one ends (H10, H22).
func (req *servedRequest) tryOnce() (rep reply, ahead <-chan struct{}) {
	if rep, changed := req.refuseChangedKey(); changed {
		return rep, nil
	}
	var found lookup
	if req.expectsRecord() {
		if ahead = req.layer.flights.running(req.id); ahead != nil {
			return inProgressReply(time.Second), ahead
		}
		if found = req.lookUp(); found.kind == lookupAnswered {
			return found.reply, nil
		}
	}
	return req.claimAndRun(found)
}

// expectsRecord reports whether there may be a record under the key that is worth a query before
// the key is claimed. In transactional mode the claim looks for one too.
func (req *servedRequest) expectsRecord() bool {
	return req.handler.route.Mode == Leased || req.layer.cache != nil || req.layer.recentKeys.has(req.id)
}

// claimAndRun takes the key and runs the handler. In lease mode it takes over a request whose lease
// has ended. If another request of this process is faster, it answers from that one's record, if
// there is one.
func (req *servedRequest) claimAndRun(found lookup) (rep reply, ahead <-chan struct{}) {
	flights := &req.layer.flights
	if req.flight, ahead = flights.start(req.id); req.flight == nil {
		if !req.layer.recentKeys.has(req.id) {
			if now := req.lookUp(); now.kind == lookupAnswered && now.reply.mark == Replayed {
				return now.reply, nil
			}
		}
		return inProgressReply(time.Second), ahead
	}
	defer flights.end(req.flight)
	return req.serveHeld(req.newHolder(), found), nil
}

// newHolder returns what holds the request's key, by the mode of its route.
func (req *servedRequest) newHolder() holder {
	if req.handler.route.Mode == Leased {
		return &leaseHolder{}
	}
	return txHolder{}
}

// serveUnkeyed runs a request that has no key and needs none (H5).
func (req *servedRequest) serveUnkeyed() reply {
	if req.handler.route.Mode == Leased {
		return req.runUnprotected(req.newRecorder(req.bodyLimit()))
	}
	return req.serveHeld(txHolder{}, lookup{})
}

// runUnprotected runs the handler without the store (H5).
func (req *servedRequest) runUnprotected(rec *recorder) reply {
	run := req.newRun()
	run.unprotected = true
	if p := run.runHandler(req.work, rec); p != nil {
		panic(p)
	}
	if rec.exceeded() {
		return problemReply(codeResponseTooLarge, nil)
	}
	return handlerReply(Bypassed, rec)
}
