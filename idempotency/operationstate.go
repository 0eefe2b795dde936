package idempotency

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
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
	return o.copyReply(&req.handler.route, state, resp, expires), true
}

// copyReply makes the reply from the operation's state: 202 while it runs, or 409 if the route says
// so, and 200 after its end.
func (o *Operations) copyReply(route *Route, state *operationState, resp *storedResponse, expires *time.Time) reply {
	running := state.State == operationRunning || state.State == operationSuspended
	if running && route.RunningConflict {
		rep := problemReply(codeInProgress, nil)
		rep.set = resp.Header // of which a problem shows Location
		rep.retryAfter = o.cfg.RetryAfter
		return rep
	}
	rep := reply{
		mark:    Replayed,
		status:  http.StatusAccepted,
		set:     maps.Clone(resp.Header),
		added:   resp.Added,
		body:    state.encode(),
		expires: expires,
	}
	if running {
		rep.retryAfter = o.cfg.RetryAfter
		return rep
	}
	rep.status = http.StatusOK
	delete(rep.set, "Retry-After")
	return rep
}

// findOperationSQL finds an operation within a scope. In: id, tenant, principal, its key among
// parked rows. Out: at most one row. Expired operations count as absent (H23).
const findOperationSQL = `
select o.name,
       case
         when o.state = 'running'
              and exists (select from onlyonce.parked p
                           where p.kind = 'event'
                             and p.key = $4
                             and p.settled_at is null
                             and p.reason <> 'conflict'
                             and p.state = 'waiting') then 'suspended'
         else o.state
       end,
       o.result,
       o.sealed,
       o.error_code,
       coalesce(o.error_text, ''),
       o.created_at,
       o.completed_at,
       s.percent,
       coalesce(s.text, ''),
       s.updated_at,
       s.cancel_at is not null,
       o.erased_at is not null
  from onlyonce.operations o left join onlyonce.operation_signals s on s.id = o.id
 where o.id = $1
   and o.tenant = $2
   and o.principal = $3
   and not onlyonce.has_expired(o.expires_at, o.watched_at, o.keep)`

// cancelSQL records a client's request to cancel an operation that is not done. In: id.
const cancelSQL = `
insert into onlyonce.operation_signals (id, cancel_at)
  select o.id, clock_timestamp() from onlyonce.operations o where o.id = $1 and o.state = 'running'
on conflict (id) do update set cancel_at = coalesce(operation_signals.cancel_at, excluded.cancel_at)`

// ServeHTTP serves GET {Path}{id} and POST {Path}{id}/cancel, which requests a cancellation and
// does not wait for it. For an operation of another scope the answer is 404.
func (o *Operations) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	scope, err := o.layer.cfg.Scope(r)
	if err == nil {
		err = scope.check()
	}
	if err != nil {
		o.layer.writeRefusal(w, r, codeScopeMissing)
		return
	}
	name, cancel := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, o.cfg.Path), "/cancel")
	allowed := http.MethodGet
	if cancel {
		allowed = http.MethodPost
	}
	if r.Method != allowed && !(allowed == http.MethodGet && r.Method == http.MethodHead) {
		w.Header().Set("Allow", allowed)
		http.Error(w, http.StatusText(http.StatusMethodNotAllowed), http.StatusMethodNotAllowed)
		return
	}
	id, err := uuid.Parse(name)
	if err != nil || id.String() != name {
		http.NotFound(w, r)
		return
	}
	ctx, done := context.WithTimeout(r.Context(), o.layer.cfg.AcquireTimeout)
	defer done()
	if o.shards != nil {
		layer, err := o.layer.ofTenant(ctx, scope.Tenant)
		if err != nil {
			o.layer.reportError(err)
			w.Header().Set("Retry-After", "1")
			o.layer.writeRefusal(w, r, codeStoreUnavailable)
			return
		}
		o = o.shards[layer]
	}
	state, err := o.findState(ctx, id, scope)
	if err == nil && state != nil && cancel {
		if _, err = o.layer.pool.Exec(ctx, cancelSQL, id); err == nil {
			state, err = o.findState(ctx, id, scope)
		}
	}
	switch {
	case errors.Is(err, errErased):
		o.layer.writeRefusal(w, r, codeNotReplayable)
	case errors.Is(err, errUnreadable):
		o.layer.reportError(err)
		o.layer.writeRefusal(w, r, codeRecordUnreadable)
	case err != nil:
		o.layer.reportError(err)
		w.Header().Set("Retry-After", "1")
		o.layer.writeRefusal(w, r, codeStoreUnavailable)
	case state == nil:
		http.NotFound(w, r)
	default:
		o.writeState(w, http.StatusOK, state)
	}
}

func (o *Operations) findState(ctx context.Context, id uuid.UUID, scope Scope) (*operationState, error) {
	s := operationState{ID: id.String()}
	var result []byte
	var sealed, erased bool
	var code *string
	var text, said string
	var percent *int
	var updated *time.Time
	err := o.layer.pool.QueryRow(
		ctx,
		findOperationSQL,
		id,
		scope.Tenant,
		scope.Principal,
		o.parkedKey(scope.Tenant, s.ID),
	).Scan(
		&s.Name, &s.State, &result, &sealed, &code, &text, &s.CreatedAt, &s.CompletedAt, &percent,
		&said, &updated, &s.Cancelling, &erased,
	)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("idempotency: looking up an operation: %w", err)
	}
	if erased {
		return nil, errErased
	}
	s.Cancelling = s.Cancelling && s.State == operationRunning
	if percent != nil && updated != nil && s.State == operationRunning {
		s.Progress = &operationProgress{Percent: *percent, Text: said, UpdatedAt: updated.UTC()}
	}
	if code != nil {
		s.Error = &operationError{Code: *code, Text: text}
	}
	if result != nil {
		if s.Result, err = o.layer.unseal(sealPlace{id, sealedResult, ""}, result, sealed); err != nil {
			return nil, fmt.Errorf("%w: %w", errUnreadable, err)
		}
	}
	return &s, nil
}

// writeState answers with an operation's state.
func (o *Operations) writeState(w http.ResponseWriter, status int, s *operationState) {
	w.Header().Set("Content-Type", "application/json")
	if s.State == operationRunning {
		w.Header().Set("Retry-After", o.retryAfter())
	}
	w.WriteHeader(status)
	_, _ = w.Write(s.encode()) // if the client has disconnected, it asks again
}

// retryAfter is OperationsConfig.RetryAfter as a header has it.
func (o *Operations) retryAfter() string {
	return strconv.Itoa(int((o.cfg.RetryAfter + time.Second - 1) / time.Second))
}
