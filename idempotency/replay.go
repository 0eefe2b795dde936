package idempotency

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"time"
)

// replyFromCache answers from the cache.
func (req *servedRequest) replyFromCache() (reply, bool) {
	if req.layer.cache == nil {
		return reply{}, false
	}
	c, ok := req.layer.cache.get(req.ctx, req.id)
	if !ok {
		return reply{}, false
	}
	if same, err := req.layer.fingerprints.matches(c.Fingerprint, &req.subject, req.fingerprint); err != nil || !same {
		return reply{}, false // the database decides between 422 and an error
	}
	return req.replayReply(c.Response, &c.Expires), true
}

// cacheRecord puts a record that was read from the database into the cache, after the answer. A
// record that was just committed is not put: most are never asked for again, and the timeline would
// take another query.
func (req *servedRequest) cacheRecord(r *storedRecord, resp *storedResponse) {
	l := req.layer
	if l.cache == nil || r.expires == nil {
		return
	}
	select {
	case l.cachePuts <- struct{}{}:
	default:
		return
	}
	go func(ctx context.Context, id [16]byte) {
		defer func() { <-l.cachePuts }()
		l.cache.put(
			ctx,
			id,
			&cacheEntry{Origin: r.readFrom, Expires: *r.expires, Fingerprint: r.fingerprint, Response: resp},
			func(ctx context.Context) (bool, error) {
				now, err := l.findRecord(ctx, id)
				return err == nil && now != nil && now.token == r.token && !now.erased, err
			},
		)
	}(context.WithoutCancel(req.ctx), req.id)
}

// replyFromRecord answers a request from the record under its key (H7, H16).
func (req *servedRequest) replyFromRecord(r *storedRecord) reply {
	same, err := req.layer.fingerprints.matches(r.fingerprint, &req.subject, req.fingerprint)
	// the record was made when the route compared bodies as JSON, and this body is not JSON
	if errors.Is(err, errJSON) {
		same = false
		err = nil
	}
	if err != nil {
		return problemReply(codeRecordUnreadable, err)
	}
	if !same {
		conflict := problemReply(codeKeyReused, nil)
		conflict.status = req.handler.route.ConflictStatus // 0 for Do, whose callers get no status
		return conflict
	}
	switch r.state {
	case stateRunning:
		return inProgressReply(r.leaseLeft)
	case stateReconcile:
		return problemReply(codeCommitUnknown, nil)
	}
	req.layer.recentKeys.add(req.id)
	if r.erased {
		return goneReply(&storedResponse{Status: r.refusal}, r.expires)
	}
	stored, err := req.layer.unseal(sealPlace{req.id, sealedAnswer, ""}, r.response, r.sealed)
	if err != nil {
		return problemReply(codeRecordUnreadable, err)
	}
	resp, err := decodeResponse(stored)
	if err != nil {
		return problemReply(codeRecordUnreadable, err)
	}
	req.cacheRecord(r, resp)
	return req.replayReply(resp, r.expires)
}

// replayReply repeats the first answer. A body that was stored by reference is rendered again
// (H28).
func (req *servedRequest) replayReply(resp *storedResponse, expires *time.Time) reply {
	if resp.Tombstone {
		return goneReply(resp, expires)
	}
	if resp.Operation != "" {
		if rep, ok := req.operationReply(resp, expires); ok {
			return rep
		}
	}
	body := resp.Body
	if resp.Reference != "" {
		rendered, refusal, ok := req.renderBody(resp, expires)
		if !ok {
			return refusal
		}
		body = rendered
	}
	return reply{
		mark:    Replayed,
		status:  resp.Status,
		set:     resp.Header,
		added:   resp.Added,
		body:    body,
		trailer: resp.Trailer,
		expires: expires,
	}
}

// renderBody calls Route.Render. If it fails, ok is false (H28).
func (req *servedRequest) renderBody(resp *storedResponse, expires *time.Time) (body []byte, rep reply, ok bool) {
	render := req.handler.route.Render
	if render == nil {
		return nil, problemReply(codeRecordUnreadable, errNoRender), false
	}
	ctx, cancel := context.WithTimeout(req.caller, req.handler.route.HandlerTimeout)
	defer cancel()
	body, err := render(ctx, req.scope, resp.Reference)
	switch {
	case errors.Is(err, ErrReferenceGone):
		return nil, goneReply(resp, expires), false
	case err != nil:
		return nil, problemReply(codeNotRendered, fmt.Errorf("idempotency: Route.Render: %w", err)), false
	}
	return body, reply{}, true
}

// errNoRender is returned for a stored reference if the route has no Render any more.
var errNoRender = errors.New("idempotency: the answer was stored by reference, and Route.Render is not set")

// goneReply is the reply if the body of the first answer is gone, or all of the answer is erased. A
// refusal keeps its status, because 410 says that the request took effect: a relay would count its
// call as delivered (H15).
func goneReply(resp *storedResponse, expires *time.Time) reply {
	if resp.Status >= http.StatusBadRequest {
		return reply{mark: Replayed, status: resp.Status, set: resp.Header, added: resp.Added, expires: expires}
	}
	rep := reply{mark: Replayed, code: codeNotReplayable, set: http.Header{}}
	maps.Copy(rep.set, resp.Header)
	return rep
}

// lookup is the store's record under a request's key, as it was found before the request takes the
// key.
type lookup struct {
	kind   lookupKind
	reply  reply         // lookupAnswered
	record *storedRecord // lookupLeaseEnded
}

type lookupKind int

const (
	lookupNothing lookupKind = iota // no record, or one that has expired
	// a record that answers the request: it is complete, runs, or is another request's
	lookupAnswered
	lookupLeaseEnded // a request in lease mode whose owner is gone: its lease can be taken over
)

// lookUp looks for the key's record in the cache, and then in the database. If the database does
// not answer, that is the answer too.
func (req *servedRequest) lookUp() lookup {
	if rep, cached := req.replyFromCache(); cached {
		return lookup{kind: lookupAnswered, reply: rep}
	}
	rec, err := req.layer.findRecord(req.ctx, req.id)
	switch {
	case err != nil:
		return lookup{kind: lookupAnswered, reply: problemReply(codeStoreUnavailable, err)}
	case rec == nil:
		return lookup{kind: lookupNothing}
	}
	rep := req.replyFromRecord(rec) // a different request under such a key gets 422 as usual
	if req.handler.route.Mode == Leased && rec.leaseEnded && rep.code == codeInProgress {
		return lookup{kind: lookupLeaseEnded, record: rec}
	}
	return lookup{kind: lookupAnswered, reply: rep}
}
