package idempotency

import (
	"context"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/dedupe"
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
	req.origin = origin.Origin{Tenant: req.scope.Tenant, Scope: req.subject.Scope, ID: req.key, Trace: trace, TraceOf: req.layer.cfg.Trace}
	req.id = dedupe.Key{Tenant: req.scope.Tenant, Scope: req.subject.Scope, ID: req.key}.Hash()
	req.subject.Record, req.subject.Key = req.id, req.key
}

// newRecorder makes the ResponseWriter for one run of the handler.
func (req *servedRequest) newRecorder(limit int) *recorder {
	if req.w == nil {
		return newRecorder(limit)
	}
	return newRecorderOver(limit, req.w.Header())
}

// bodyLimit returns how long an answer may be while its handler runs. Whether one that is longer
// than Route.MaxResponse is sent is decided afterwards.
func (req *servedRequest) bodyLimit() int {
	route := &req.handler.route
	if req.key == "" || route.DiscardBody || route.AllowLargeOnce || route.Render != nil {
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
