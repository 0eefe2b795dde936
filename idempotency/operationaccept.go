package idempotency

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/http"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/eventsource"
)

// Request describes an operation to [Operations.Accept].
type Request struct {
	// Name is the name of a Work passed to NewOperations. Required.
	Name string
	// Input is the input of the Work, at most 32 MiB. It is stored, and sealed if the
	// layer has a Sealer. Defaults to none.
	Input []byte
	// OrderingKey orders operations: a tenant's operations with the same key run one after another,
	// in the order of their commits. Defaults to none: the operation does not wait for others.
	OrderingKey string
}

// acceptSQL inserts an operation, unless too many of the tenant's have not ended in the stream. In:
// id, its request's id, stream, tenant, principal, name, how long it is kept after its end, how
// many may be running. It counts at most that many entries of the index operations_running.
const acceptSQL = `
insert into onlyonce.operations (
  id,
  record_id,
  topic,
  tenant,
  principal,
  name,
  keep
)
select $1,
       $2,
       $3,
       $4,
       $5,
       $6,
       $7
 where $4 = ''
   or (select count(*)
         from (select from onlyonce.operations o
                where o.topic = $3 and o.tenant = $4 and o.state = 'running' limit $8) s) < $8`

// Accept stores an operation in the request's transaction, and answers 202 with the operation's URL
// and state. A copy of the request gets the operation's present state: 202 with Retry-After while
// it runs (or 409, see Route.RunningConflict), then 200 with the result. If
// OperationsConfig.TenantRunning operations of the tenant have not ended, it answers 429, and the
// same request may succeed later. If it returns an error, it has not written an answer: the handler
// must answer with a status that the layer does not store, for example 500 (H23).
func (o *Operations) Accept(w http.ResponseWriter, r *http.Request, req Request) error {
	run, ok := r.Context().Value(runKey{}).(*handlerRun)
	if ok && o.shards[run.layer] != nil {
		o = o.shards[run.layer]
	}
	behind := ok && run.layer == o.layer && !run.unprotected
	switch {
	case !behind || run.handler.route.Mode != Transactional:
		return fmt.Errorf("%w: Accept must be called in a handler behind the same layer, in transactional mode",
			ErrNoTx)
	case o.work[req.Name] == nil:
		return fmt.Errorf("%w: Request.Name: there is no work %q", ErrConfig, req.Name)
	case len(req.Input) > maxStored:
		return fmt.Errorf("%w: Request.Input: has %d bytes: must have at most %d", ErrConfig, len(req.Input), maxStored)
	}
	if err := o.makeStream(r.Context()); err != nil {
		return err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return err
	}
	input, sealed, err := o.layer.seal(sealPlace{id, sealedInput, ""}, req.Input)
	if err != nil {
		return err
	}
	tx, err := TxOf(r)
	if err != nil {
		return err
	}
	inserted, err := tx.Exec(
		r.Context(),
		acceptSQL,
		id,
		codec.UUID(run.id),
		o.cfg.Stream,
		run.scope.Tenant,
		run.scope.Principal,
		req.Name,
		o.cfg.TTL,
		o.cfg.TenantRunning,
	)
	if err != nil {
		return err
	}
	if inserted.RowsAffected() == 0 {
		w.Header().Set("Retry-After", o.retryAfter())
		o.layer.writeRefusal(w, r, codeOverCapacity)
		return nil
	}
	e := eventsource.Event{
		Topic:     o.cfg.Stream,
		Tenant:    run.scope.Tenant,
		ID:        id.String(),
		Body:      input,
		Partition: o.partitionOf(run.scope.Tenant, req.OrderingKey),
		Headers:   []consumer.Header{{Name: headerSealed, Value: []byte(sealedMark[sealed])}},
	}
	if req.OrderingKey != "" {
		e.Key = []byte(req.OrderingKey)
	}
	e.Headers = append(e.Headers, traceHeaders(run.origin.TraceIn(r.Context()))...)
	if err := eventsource.Append(r.Context(), tx, e); err != nil {
		return err
	}
	run.onCommit = o.source.Wake
	run.asking.Lock()
	run.operation = operationName(o.cfg.Stream, id)
	run.asking.Unlock()
	w.Header().Set("Location", o.cfg.Path+id.String())
	o.writeState(w, http.StatusAccepted, &operationState{ID: id.String(), Name: req.Name, State: operationRunning})
	return nil
}

// makeStream makes the stream of operations, if this process has not seen it yet.
func (o *Operations) makeStream(ctx context.Context) error {
	if o.partitions.Load() != 0 {
		return nil
	}
	n, err := eventsource.MakeStream(ctx, o.layer.pool, o.cfg.Stream, o.cfg.Partitions)
	if err != nil {
		return err
	}
	o.partitions.Store(int32(n))
	return nil
}

// traceHeaders returns the headers of an event that continue a trace.
func traceHeaders(trace string) []consumer.Header {
	if trace == "" {
		return nil
	}
	parent, state := codec.SplitTrace(trace)
	headers := []consumer.Header{{Name: "traceparent", Value: []byte(parent)}}
	if state != "" {
		headers = append(headers, consumer.Header{Name: "tracestate", Value: []byte(state)})
	}
	return headers
}

// partitionOf returns the partition of an operation: one of its tenant's, the same for all of an
// ordering key. It is nil if there is no tenant (H23).
func (o *Operations) partitionOf(tenant, orderingKey string) *int16 {
	if tenant == "" {
		return nil
	}
	n := int(o.partitions.Load())
	of := min(o.cfg.TenantPartitions, n) // the stream may have been made with fewer
	nth := rand.IntN(of)
	if orderingKey != "" {
		nth = hashed(orderingKey, of)
	}
	at := int16((hashed(tenant, n) + nth) % n)
	return &at
}

// hashed returns a number below n that is always the same for a text.
func hashed(text string, n int) int {
	sum := sha256.Sum256([]byte(text))
	return int(binary.BigEndian.Uint32(sum[:]) % uint32(n))
}

// operationName is how a stored answer names its operation.
func operationName(stream string, id uuid.UUID) string { return stream + "/" + id.String() }
