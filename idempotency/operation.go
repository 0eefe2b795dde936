package idempotency

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/codec"
)

// States of an operation. It is suspended if its worker has parked it.
const (
	operationRunning   = "running"
	operationSucceeded = "succeeded"
	operationFailed    = "failed"
	operationCancelled = "cancelled"
	operationSuspended = "suspended"
)

// operationState is the JSON that clients get.
type operationState struct {
	ID          string             `json:"id"`
	Name        string             `json:"name"`
	State       string             `json:"state"`
	Progress    *operationProgress `json:"progress,omitempty"`
	Cancelling  bool               `json:"cancelling,omitempty"`
	CreatedAt   *time.Time         `json:"created_at,omitempty"`
	CompletedAt *time.Time         `json:"completed_at,omitempty"`
	Result      json.RawMessage    `json:"result,omitempty"`
	Error       *operationError    `json:"error,omitempty"`
}

type operationProgress struct {
	Percent   int       `json:"percent"`
	Text      string    `json:"text,omitempty"`
	UpdatedAt time.Time `json:"updated_at"`
}

type operationError struct {
	Code string `json:"code"`
	Text string `json:"text,omitempty"`
}

// findOperationSQL finds an operation within a scope. In: id, tenant, principal, its key among
// parked rows. Out: at most one row. Expired operations count as absent.
const findOperationSQL = `
select o.name, case when o.state = 'running' and exists (select from onlyonce.parked p where p.kind = 'event' and p.key = $4 and p.settled_at is null
                                                            and p.reason <> 'conflict' and p.state = 'waiting') then 'suspended' else o.state end,
       o.result, o.sealed, o.error_code, coalesce(o.error_text, ''), o.created_at, o.completed_at, s.percent, coalesce(s.text, ''), s.updated_at, s.cancel_at is not null
  from onlyonce.operations o left join onlyonce.operation_signals s on s.id = o.id
 where o.id = $1 and o.tenant = $2 and o.principal = $3 and (o.expires_at is null or o.expires_at > clock_timestamp())`

// cancelSQL records a client's request to cancel an operation that is not done. In: id.
const cancelSQL = `
insert into onlyonce.operation_signals (id, cancel_at) select o.id, clock_timestamp() from onlyonce.operations o where o.id = $1 and o.state = 'running'
on conflict (id) do update set cancel_at = coalesce(operation_signals.cancel_at, excluded.cancel_at)`

// ServeHTTP serves GET {Path}{id} and POST {Path}{id}/cancel, which requests a cancellation and
// does not wait for it. An operation of another scope is answered 404.
func (o *Operations) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	scope, err := o.layer.cfg.Scope(r)
	if err == nil {
		err = scope.check()
	}
	if err != nil {
		writeRefusal(w, codeScopeMissing, "", "")
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
	state, err := o.find(ctx, id, scope)
	if err == nil && state != nil && cancel {
		if _, err = o.layer.pool.Exec(ctx, cancelSQL, id); err == nil {
			state, err = o.find(ctx, id, scope)
		}
	}
	switch {
	case errors.Is(err, errUnreadable):
		o.layer.failed(err)
		writeRefusal(w, codeRecordUnreadable, "", "")
	case err != nil:
		o.layer.failed(err)
		w.Header().Set("Retry-After", "1")
		writeRefusal(w, codeStoreUnavailable, "", "")
	case state == nil:
		http.NotFound(w, r)
	default:
		o.write(w, http.StatusOK, state)
	}
}

var errUnreadable = errors.New("idempotency: the stored result cannot be read")

func (o *Operations) find(ctx context.Context, id uuid.UUID, scope Scope) (*operationState, error) {
	s := operationState{ID: id.String()}
	var result []byte
	var sealed bool
	var code *string
	var text, said string
	var percent *int
	var updated *time.Time
	err := o.layer.pool.QueryRow(ctx, findOperationSQL, id, scope.Tenant, scope.Principal, o.key(scope.Tenant, s.ID)).Scan(
		&s.Name, &s.State, &result, &sealed, &code, &text, &s.CreatedAt, &s.CompletedAt, &percent, &said, &updated, &s.Cancelling)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("idempotency: looking up an operation: %w", err)
	}
	s.Cancelling = s.Cancelling && s.State == operationRunning
	if percent != nil && updated != nil && s.State == operationRunning {
		s.Progress = &operationProgress{Percent: *percent, Text: said, UpdatedAt: updated.UTC()}
	}
	if code != nil {
		s.Error = &operationError{Code: *code, Text: text}
	}
	if result != nil {
		if s.Result, err = o.layer.open(codec.SealPlace(id, sealedResult, ""), result, sealed); err != nil {
			return nil, fmt.Errorf("%w: %w", errUnreadable, err)
		}
	}
	return &s, nil
}

// write answers with an operation's state.
func (o *Operations) write(w http.ResponseWriter, status int, s *operationState) {
	body, err := json.Marshal(s)
	if err != nil {
		panic(err) // cannot fail: the result was checked when it was stored
	}
	w.Header().Set("Content-Type", "application/json")
	if s.State == operationRunning {
		w.Header().Set("Retry-After", strconv.Itoa(int((o.cfg.RetryAfter+time.Second-1)/time.Second)))
	}
	w.WriteHeader(status)
	_, _ = w.Write(body) // if the client has disconnected, it asks again
}

// operationSQL reads an operation. In: id. Out: at most one row. It needs no lock: cancellations
// and progress are in another table, and the consumer makes sure that only one process works on it.
const operationSQL = `
select o.name, o.principal, o.state, s.cancel_at is not null
  from onlyonce.operations o left join onlyonce.operation_signals s on s.id = o.id where o.id = $1`

// endSQL writes an operation's end, in the transaction of its work. In: id, state, result, whether
// it is sealed, code, text.
const endSQL = `
update onlyonce.operations set state = $2, result = $3, sealed = $4, error_code = $5, error_text = $6, completed_at = clock_timestamp(), expires_at = clock_timestamp() + keep
 where id = $1 and state = 'running'`

// apply is the consumer's handler.
func (o *Operations) apply(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	op := &Operation{ID: m.ID(), Scope: Scope{Tenant: m.Tenant()}, Input: m.Value, ops: o}
	var err error
	if op.id, err = uuid.Parse(op.ID); err != nil {
		return consumer.Permanent(fmt.Errorf("idempotency: the event's id is not that of an operation: %w", err))
	}
	var state string
	var cancelled bool
	err = tx.QueryRow(ctx, operationSQL, op.id).Scan(&op.Name, &op.Scope.Principal, &state, &cancelled)
	switch {
	case errors.Is(err, pgx.ErrNoRows) || err == nil && state != operationRunning:
		return nil // expired, or ended by an operator
	case err != nil:
		return err
	case cancelled:
		return o.end(tx, op, operationCancelled, nil, nil)
	case o.work[op.Name] == nil:
		return fmt.Errorf("idempotency: this process has no work %q", op.Name)
	}
	sealed, _ := m.Header(headerSealed)
	if op.Input, err = o.layer.open(codec.SealPlace(op.id, sealedInput, ""), m.Value, string(sealed) == sealedMark[true]); err != nil {
		if errors.Is(err, errNoSealer) { // another process may have a Sealer
			return err
		}
		return consumer.Permanent(err)
	}
	return o.do(ctx, tx, op, m.Attempt)
}

// do runs the work, and writes its end.
func (o *Operations) do(ctx context.Context, tx consumer.Tx, op *Operation, attempt int) error {
	watched, stop := o.watch(ctx, op)
	defer stop()
	var result json.RawMessage
	err := tx.Savepoint(ctx, func() (err error) {
		if result, err = o.work[op.Name](watched, tx, op); err != nil {
			return err
		}
		if result, err = compact(result, o.cfg.MaxResult); err != nil {
			return Failed("bad-result", err.Error())
		}
		return nil
	})
	var f *failure
	switch {
	case err == nil:
		return o.end(tx, op, operationSucceeded, result, nil)
	case errors.Is(context.Cause(watched), ErrCancelled):
		return o.end(tx, op, operationCancelled, nil, nil) // if the connection is lost, the next attempt finds it cancelled before it begins
	case errors.As(err, &f):
		return o.end(tx, op, operationFailed, nil, f)
	case consumer.IsPermanent(err) || attempt >= o.cfg.MaxAttempts:
		o.layer.failed(fmt.Errorf("idempotency: operation %s, %s: %w", op.ID, op.Name, err))
		return o.end(tx, op, operationFailed, nil, &failure{code: "failed"})
	}
	return err
}

// compact checks that a result is JSON and not too long.
func compact(result json.RawMessage, limit int) (json.RawMessage, error) {
	if len(result) == 0 {
		return nil, nil
	}
	if !json.Valid(result) {
		return nil, errors.New("the result is not JSON")
	}
	if len(result) > limit {
		return nil, fmt.Errorf("the result has %d bytes, at most %d are kept", len(result), limit)
	}
	return result, nil
}

const (
	maxFailureCode = 200
	maxFailureText = 2000
)

func (o *Operations) end(tx consumer.Tx, op *Operation, state string, result []byte, f *failure) (err error) {
	sealed := false
	if result != nil {
		if result, sealed, err = o.layer.seal(codec.SealPlace(op.id, sealedResult, ""), result); err != nil {
			return err
		}
	}
	var code, text *string
	if f != nil {
		c, t := codec.TextUpTo(f.code, maxFailureCode), codec.TextUpTo(f.text, maxFailureText)
		code, text = &c, &t
	}
	tx.Queue(endSQL, op.id, state, result, sealed, code, text)
	return nil
}

// isCancelledSQL reports whether an operation was cancelled. In: id. Out: one row.
const isCancelledSQL = `select exists (select from onlyonce.operation_signals where id = $1 and cancel_at is not null)`

// watch ends the work's context if the client cancels the operation.
func (o *Operations) watch(ctx context.Context, op *Operation) (watched context.Context, stop func()) {
	watched, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(o.cfg.PollInterval)
		defer tick.Stop()
		for {
			select {
			case <-watched.Done():
				return
			case <-tick.C:
			}
			var cancelled bool
			if err := o.layer.pool.QueryRow(watched, isCancelledSQL, op.id).Scan(&cancelled); err == nil && cancelled {
				cancel(ErrCancelled)
				return
			}
		}
	}()
	return watched, func() {
		cancel(nil)
		<-done
	}
}

// progressSQL records the progress of an operation. In: id, percent, text.
const progressSQL = `
insert into onlyonce.operation_signals (id, percent, text, updated_at) values ($1, $2, $3, clock_timestamp())
on conflict (id) do update set percent = excluded.percent, text = excluded.text, updated_at = excluded.updated_at`

// Progress shows clients how far the work has come: percent from 0 to 100, and a text of at most
// 200 bytes. It is written at once, outside of the work's transaction, so that clients see it
// before the work commits, even if the work is rolled back later.
func (op *Operation) Progress(ctx context.Context, percent int, text string) error {
	if percent < 0 || percent > 100 {
		return fmt.Errorf("%w: Progress: %d is not from 0 to 100", ErrConfig, percent)
	}
	ctx, cancel := context.WithTimeout(ctx, op.ops.layer.cfg.AcquireTimeout)
	defer cancel()
	if _, err := op.ops.layer.pool.Exec(ctx, progressSQL, op.id, percent, codec.TextUpTo(text, maxStepName)); err != nil {
		return fmt.Errorf("idempotency: writing progress: %w", err)
	}
	return nil
}
