package idempotency

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/codec"
)

// operationSQL reads an operation. In: id. Out: at most one row. It needs no lock: cancellations
// and progress are in another table, and the consumer makes sure that only one process works on it.
const operationSQL = `
select o.name, o.principal, o.state, s.cancel_at is not null
  from onlyonce.operations o left join onlyonce.operation_signals s on s.id = o.id where o.id = $1`

// endOperationSQL writes an operation's end, in the transaction of its work. In: id, state, result,
// whether it is sealed, code, text (H23).
const endOperationSQL = `
update onlyonce.operations
   set state = $2,
       result = $3,
       sealed = $4,
       error_code = $5,
       error_text = $6,
       completed_at = clock_timestamp(),
       expires_at = clock_timestamp() + keep,
       watched_at = (select w.at from onlyonce.watched w)
 where id = $1 and state = 'running'`

// applyEvent is the consumer's handler.
func (o *Operations) applyEvent(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	op := &Operation{ID: m.ID(), Scope: Scope{Tenant: m.Tenant()}, Input: m.Value, ops: o}
	var err error
	if op.id, err = uuid.Parse(op.ID); err != nil {
		return consumer.Permanent(fmt.Errorf("idempotency: the event's id is not an operation's: %w", err))
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
		return o.writeEnd(tx, op, operationCancelled, nil, nil)
	case o.work[op.Name] == nil:
		return fmt.Errorf("idempotency: this process has no Work for the operation %q: pass it to NewOperations",
			op.Name)
	}
	sealed, _ := m.Header(headerSealed)
	if op.Input, err = o.layer.unseal(
		sealPlace{op.id, sealedInput, ""},
		m.Value,
		string(sealed) == sealedMark[true],
	); err != nil {
		if errors.Is(err, errNoSealer) { // another process may have a Sealer
			return err
		}
		return consumer.Permanent(err)
	}
	return o.runWork(ctx, tx, op, m.Attempt)
}

// runWork runs the work, and writes its end (H23).
func (o *Operations) runWork(ctx context.Context, tx consumer.Tx, op *Operation, attempt int) error {
	watched, stop := o.watchCancellation(ctx, op)
	defer stop()
	var result json.RawMessage
	err := tx.Savepoint(ctx, func() (err error) {
		if result, err = o.work[op.Name](watched, tx, op); err != nil {
			return err
		}
		if result, err = checkResult(result, o.cfg.MaxResult); err != nil {
			return Permanent("bad-result", err.Error())
		}
		return nil
	})
	permanent, isPermanent := asPermanent(err)
	switch {
	case err == nil:
		return o.writeEnd(tx, op, operationSucceeded, result, nil)
	case errors.Is(context.Cause(watched), ErrCancelled):
		// if the connection is lost, the next attempt finds it cancelled before it begins
		return o.writeEnd(tx, op, operationCancelled, nil, nil)
	case isPermanent:
		return o.writeEnd(tx, op, operationFailed, nil, permanent)
	case consumer.IsPermanent(err) || attempt >= o.cfg.MaxAttempts:
		o.layer.reportError(fmt.Errorf("idempotency: operation %s, %s: %w", op.ID, op.Name, err))
		return o.writeEnd(tx, op, operationFailed, nil, &PermanentError{Code: "failed"})
	}
	return err
}

// checkResult checks that a result is JSON and not too long.
func checkResult(result json.RawMessage, limit int) (json.RawMessage, error) {
	if len(result) == 0 {
		return nil, nil
	}
	if !json.Valid(result) {
		return nil, errors.New("the result is not JSON")
	}
	if len(result) > limit {
		return nil, fmt.Errorf("the result has %d bytes, more than OperationsConfig.MaxResult, %d", len(result), limit)
	}
	return result, nil
}

const (
	maxFailureCode = 200
	maxFailureText = 2000
)

func (o *Operations) writeEnd(
	tx consumer.Tx,
	op *Operation,
	state string,
	result []byte,
	f *PermanentError,
) (err error) {
	sealed := false
	if result != nil {
		if result, sealed, err = o.layer.seal(sealPlace{op.id, sealedResult, ""}, result); err != nil {
			return err
		}
	}
	var code, text *string
	if f != nil {
		c := codec.TextUpTo(f.Code, maxFailureCode)
		t := codec.TextUpTo(f.Detail, maxFailureText)
		code = &c
		text = &t
	}
	tx.Queue(endOperationSQL, op.id, state, result, sealed, code, text)
	return nil
}

// isCancelledSQL reports whether an operation was cancelled. In: id. Out: one row.
const isCancelledSQL = `select exists (select from onlyonce.operation_signals where id = $1 and cancel_at is not null)`

// watchCancellation ends the work's context if the client cancels the operation.
func (o *Operations) watchCancellation(ctx context.Context, op *Operation) (watched context.Context, stop func()) {
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
// 200 bytes. Progress commits at once, outside of the work's transaction, so clients see it before
// the work commits, even if the work is rolled back later.
func (op *Operation) Progress(ctx context.Context, percent int, text string) error {
	if percent < 0 || percent > 100 {
		return fmt.Errorf("%w: Progress: is %d: must be from 0 to 100", ErrConfig, percent)
	}
	ctx, cancel := context.WithTimeout(ctx, op.ops.layer.cfg.AcquireTimeout)
	defer cancel()
	if _, err := op.ops.layer.pool.Exec(
		ctx,
		progressSQL,
		op.id,
		percent,
		codec.TextUpTo(text, maxStepName),
	); err != nil {
		return fmt.Errorf("idempotency: writing progress: %w", err)
	}
	return nil
}
