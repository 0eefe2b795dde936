package idempotency

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/idempotency/internal/protocol"
)

// Do calls fn once for a key of a scope, stores its result, and returns the stored result to each
// later call with the key. It does for any function (a gRPC method, a job, a command) what a
// [Layer] does for an HTTP handler. Packages grpcserver and mcpserver (modules of their own) do it
// for methods of gRPC and tools of MCP.
// Use dedupe.Do if there is no result to store.
//
// The function's writes through tx, the calls that it enqueues and the record of its result are one
// transaction, by the rules of transactional mode (H17). fn may run more than once; only one run's
// transaction commits. The caller chooses key, 1 to 255 printable ASCII characters, and uses the
// same at each retry. request is the input of the call: a later call with the same key and another
// request gets [ErrKeyReused].
//
// A call returns:
//
//	fn returned a result                 the result, Created, nil; later calls: the result, Replayed, nil
//	fn returned a *PermanentError        an equal one, with Created and later Replayed; its writes are undone
//	fn returned another error            that error, Released; its writes are undone, and the next call runs fn again
//	an earlier call is running           ErrInProgress, InProgress; with DoerConfig.Wait it waits first
//	the key was used for another request ErrKeyReused, Mismatch
//	anything else                        a *RefusedError, which says whether a retry can help
//
// The codec reads each result from the stored bytes, the first time too, so a replay equals the
// first result. If ctx or DoerConfig.HandlerTimeout ends before fn has returned, Do undoes
// everything. Once COMMIT has been sent, the end of ctx does not cut it short. If fn panics, Do
// undoes the writes and panics with the same value.
//
// Do holds one connection of the pool while fn runs, and none while it waits (H25).
func Do[T any](
	ctx context.Context,
	d *Doer,
	scope Scope,
	key string,
	request any,
	fn func(ctx context.Context, tx consumer.Tx) (T, error),
) (T, ServeOutcome, error) {
	var result T
	err := d.check(scope, key)
	if fn == nil {
		err = errors.Join(err, fmt.Errorf("%w: fn: must not be nil", ErrConfig))
	}
	if err != nil {
		return result, Rejected, err
	}
	asked, err := d.codec.Marshal(request)
	if err != nil {
		return result, Rejected, fmt.Errorf("idempotency: Do: encoding the request: %w", err)
	}
	req := d.newCall(ctx, scope, key, asked)
	var failed error // of the latest run
	req.perform = func(run *handlerRun, ctx context.Context, rec *recorder) {
		var made T
		if made, failed = fn(ctx, run.tx.Handle); failed == nil {
			failed = writeResult(d.codec, rec, made)
		} else if permanent, ok := asPermanent(failed); ok {
			failed = writeError(rec, permanent)
		}
		if failed != nil {
			rec.WriteHeader(http.StatusInternalServerError)
		}
	}
	rep := req.serve(d)
	switch {
	case rep.code != "":
		return result, rep.mark, req.refusal(rep)
	case rep.mark == Released:
		return result, rep.mark, failed
	case rep.status == statusPermanent && rep.body == nil: // erased
		return result, rep.mark, &PermanentError{Code: codeErased}
	case rep.status == statusPermanent:
		var permanent PermanentError
		if err := json.Unmarshal(rep.body, &permanent); err != nil {
			return result, rep.mark, &RefusedError{Code: string(codeRecordUnreadable), Err: err}
		}
		return result, rep.mark, &permanent
	}
	if err := d.codec.Unmarshal(rep.body, &result); err != nil {
		return result, rep.mark, &RefusedError{Code: string(codeRecordUnreadable), Err: err}
	}
	return result, rep.mark, nil
}

// codeErased is the code of a [PermanentError] that was erased.
const codeErased = "erased"

// statusPermanent is the status of a record that holds a [PermanentError]: a final 4xx.
const statusPermanent = http.StatusUnprocessableEntity

// writeResult writes a result as the answer. It reads it again first, so that no result commits
// that a later call could not get (H25).
func writeResult[T any](codec Codec, rec *recorder, result T) error {
	encoded, err := codec.Marshal(result)
	if err != nil {
		return fmt.Errorf("idempotency: Do: encoding the result: %w", err)
	}
	var again T
	if err := codec.Unmarshal(encoded, &again); err != nil {
		return fmt.Errorf("idempotency: Do: the encoded result cannot be decoded: %w", err)
	}
	_, _ = rec.Write(encoded) // decideKept asks the recorder whether it was too long
	return nil
}

func writeError(rec *recorder, e *PermanentError) error {
	encoded, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("idempotency: Do: encoding the error: %w", err)
	}
	rec.WriteHeader(statusPermanent)
	_, _ = rec.Write(encoded)
	return nil
}

// check reports why a call cannot be made.
func (d *Doer) check(scope Scope, key string) error {
	if d == nil {
		return fmt.Errorf("%w: doer: must not be nil", ErrConfig)
	}
	if err := protocol.CheckKey(key); err != nil {
		return fmt.Errorf("%w: key %w", ErrConfig, err)
	}
	if err := scope.check(); err != nil {
		return fmt.Errorf("%w: Scope.%w", ErrConfig, err)
	}
	return nil
}

// newCall makes the request that represents a call (H25).
func (d *Doer) newCall(ctx context.Context, scope Scope, key string, asked []byte) *servedRequest {
	req := &servedRequest{
		handler: d.handler,
		layer:   d.handler.layer,
		scope:   scope,
		caller:  ctx,
		work:    ctx,
		ctx:     context.WithoutCancel(ctx),
	}
	req.key = key
	req.ttl = d.handler.route.TTL
	req.subject = fingerprintSubject{
		Tenant: scope.Tenant,
		Scope:  withPrincipal("do "+d.handler.route.Pattern, scope),
		Body:   asked,
	}
	if d.handler.route.FingerprintJSON {
		req.subject.Mode = fingerprintJSON
	}
	_, _ = rand.Read(req.token[:]) // never fails
	req.setRecordID("")
	return req
}

// serve runs the call, or finds the answer of an earlier one.
func (req *servedRequest) serve(d *Doer) (rep reply) {
	begun := time.Now()
	hooks := &req.layer.cfg.Hooks
	started := ServeStart{Pattern: d.handler.route.Pattern}
	if hooks.ServeStart != nil {
		ctx := hooks.ServeStart(req.caller, started)
		req.caller = ctx
		req.work = ctx
		req.ctx = context.WithoutCancel(ctx)
	}
	rep = reply{mark: Released} // if fn panics or calls runtime.Goexit
	defer func() {
		if hooks.ServeEnd != nil {
			hooks.ServeEnd(req.caller, ServeEnd{
				ServeStart: started,
				Tenant:     req.scope.Tenant,
				Outcome:    rep.mark,
				Code:       string(rep.code),
				Runs:       req.runs,
				Took:       time.Since(begun),
			})
		}
	}()
	layer, err := d.handler.layer.ofTenant(req.ctx, req.scope.Tenant)
	if err != nil {
		return problemReply(codeStoreUnavailable, err)
	}
	req.layer = layer
	if req.fingerprint, err = req.layer.fingerprints.sum(&req.subject); err != nil {
		return problemReply(codeBodyInvalid, err)
	}
	if !req.layer.flights.admit(req.scope.Tenant, req.layer.cfg.TenantLimit) {
		return problemReply(codeOverCapacity, nil)
	}
	defer req.layer.flights.leave(req.scope.Tenant)
	return req.serveKeyed()
}

// refusal returns the error of a call that the layer has answered.
func (req *servedRequest) refusal(rep reply) error {
	cause := rep.logged
	if errors.Is(cause, errLate) && req.work.Err() != nil {
		cause = context.Cause(req.work)
	}
	return &RefusedError{
		Code:       string(rep.code),
		Retryable:  rep.code.retryable() && !rep.final,
		RetryAfter: rep.retryAfter,
		Err:        cause,
	}
}
