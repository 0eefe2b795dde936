package idempotency

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
)

// operationReply answers a copy of a request that has made an operation: with the operation's
// present state and not with the one of the first answer (H23). ok is false if this process does
// not know the operation's stream, or if the operation has expired: then the first answer is
// repeated.
func (req *servedRequest) operationReply(resp *storedResponse, expires *time.Time) (rep reply, ok bool) {
	stream, name, _ := strings.Cut(resp.Operation, "/")
	known, has := req.layer.operations.Load(stream)
	id, err := uuid.Parse(name)
	if !has || err != nil {
		return reply{}, false
	}
	o := known.(*Operations) //nolint:forcetypeassert // only NewOperations stores values
	ctx, cancel := context.WithTimeout(req.ctx, req.layer.cfg.AcquireTimeout)
	defer cancel()
	state, err := o.findState(ctx, id, req.scope)
	switch {
	case errors.Is(err, errErased):
		return problemReply(codeNotReplayable, nil), true
	case errors.Is(err, errUnreadable):
		return problemReply(codeRecordUnreadable, err), true
	case err != nil:
		return problemReply(codeStoreUnavailable, err), true
	case state == nil:
		return reply{}, false
	}
	return o.copyReply(state, resp, expires), true
}

// copyReply makes the reply from the operation's state: 202 while it runs, and 200 after its end.
func (o *Operations) copyReply(state *operationState, resp *storedResponse, expires *time.Time) reply {
	rep := reply{mark: Replayed, status: http.StatusAccepted, set: maps.Clone(resp.Header), added: resp.Added, body: state.encode(), expires: expires}
	if state.State == operationRunning || state.State == operationSuspended {
		rep.retryAfter = o.cfg.RetryAfter
		return rep
	}
	rep.status = http.StatusOK
	delete(rep.set, "Retry-After")
	return rep
}
