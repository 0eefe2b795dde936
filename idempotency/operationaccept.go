package idempotency

import (
	"fmt"
	"net/http"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/eventsource"
)

// Request describes an operation to [Operations.Accept].
type Request struct {
	// Name is the name of a Work that NewOperations was given. Required.
	Name string
	// Input is the input of the Work, at most OperationsConfig.MaxInput bytes. It is stored, and
	// sealed if the layer has a Sealer. Defaults to none.
	Input []byte
	// OrderingKey orders operations: those with the same key run one after another, in the order of
	// their commits. Defaults to none: the operation waits for no other.
	OrderingKey string
}

// acceptSQL inserts an operation. In: id, its request's id, stream, tenant, principal, name, how
// long it is kept after its end.
const acceptSQL = `insert into onlyonce.operations (id, record_id, topic, tenant, principal, name, keep) values ($1, $2, $3, $4, $5, $6, $7)`

// Accept stores an operation in the request's transaction, and answers 202 with the operation's URL
// and state. A copy of the request gets the operation's present state, see Route.RunningConflict
// and Route.DoneSeeOther. If it returns an error, it has not written an answer: the handler must
// answer, with a status whose answer is not stored, for example 500.
func (o *Operations) Accept(w http.ResponseWriter, r *http.Request, req Request) error {
	run, ok := r.Context().Value(runKey{}).(*handlerRun)
	if ok && o.shards[run.layer] != nil {
		o = o.shards[run.layer]
	}
	switch {
	case !ok || run.unprotected || run.handler.route.Mode != Transactional || run.layer != o.layer:
		return fmt.Errorf("%w: Accept must be called in a handler behind the same layer, in transactional mode", ErrNoTx)
	case o.work[req.Name] == nil:
		return fmt.Errorf("%w: Request.Name: there is no work %q", ErrConfig, req.Name)
	case len(req.Input) > o.cfg.MaxInput:
		return fmt.Errorf("%w: Request.Input: has %d bytes, at most %d", ErrConfig, len(req.Input), o.cfg.MaxInput)
	}
	if !o.streamMade.Load() {
		if _, err := eventsource.MakeStream(r.Context(), o.layer.pool, o.cfg.Stream, o.cfg.Partitions); err != nil {
			return err
		}
		o.streamMade.Store(true)
	}
	id, err := uuid.NewV7()
	if err != nil {
		return err
	}
	input, sealed, err := o.layer.seal(sealPlace{id, sealedInput, ""}, req.Input)
	if err != nil {
		return err
	}
	tx, err := Tx(r)
	if err != nil {
		return err
	}
	tx.Queue(acceptSQL, id, codec.UUID(run.id), o.cfg.Stream, run.scope.Tenant, run.scope.Principal, req.Name, o.cfg.TTL)
	e := eventsource.Event{Topic: o.cfg.Stream, Tenant: run.scope.Tenant, ID: id.String(), Body: input, Headers: []consumer.Header{{Name: headerSealed, Value: []byte(sealedMark[sealed])}}}
	if req.OrderingKey != "" {
		e.Key = []byte(req.OrderingKey)
	}
	if trace := run.origin.TraceIn(r.Context()); trace != "" {
		parent, state := codec.SplitTrace(trace)
		e.Headers = append(e.Headers, consumer.Header{Name: "traceparent", Value: []byte(parent)})
		if state != "" {
			e.Headers = append(e.Headers, consumer.Header{Name: "tracestate", Value: []byte(state)})
		}
	}
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

// operationName is how a stored answer names its operation.
func operationName(stream string, id uuid.UUID) string { return stream + "/" + id.String() }

// headerSealed is an event's header that says whether its body is sealed.
const headerSealed = "onlyonce-sealed"

var sealedMark = map[bool]string{false: "0", true: "1"}
