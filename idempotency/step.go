package idempotency

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/fault"
	"github.com/onlyonce/onlyonce/internal/guard"
)

var (
	// ErrStep is returned if a [Step] is not possible: outside of lease mode, with an empty or too
	// long name, with a name that this run of the handler has used already, after [Tx], or after
	// the handler's return.
	ErrStep = errors.New("idempotency: a step is not possible here")
	// ErrOutcomeUnknown is returned if an earlier attempt at a step may have had its effect, but so
	// long ago that the provider may have forgotten the key. Another call could repeat the effect.
	// The request is set aside for an operator, whatever the handler answers.
	ErrOutcomeUnknown = errors.New("idempotency: the step's outcome is unknown, and the provider may have forgotten its key")
)

// maxStepName bounds a step's name, maxStepResult its result, in bytes.
const (
	maxStepName   = 200
	maxStepResult = 1 << 20
)

// Step makes an external call of a handler in lease mode and remembers its result. If the handler
// runs again, for example after a crash or a 5xx, Step returns the remembered result without a
// call. If the outcome of the call is not known, Step repeats it under the same key, so that the
// effect happens once if the provider honours keys.
//
// fn gets the provider's idempotency key, a UUID in its canonical form. It is derived from the
// request's scope and key and the step's name, so that every attempt at this step has the same one,
// in whichever process. The context is the request's; it ends when the lease is lost. fn returns
// the result to remember, at most 1 MiB.
//
// A refusal that the provider has decided on, for example a declined card, is a result. An error
// means that the outcome is unknown: the next run of the handler repeats the call under the same
// key, within Route.KeyWindow. After that, Step returns [ErrOutcomeUnknown]. An answer like "key in
// use" or "in progress" is an error too, because the earlier attempt may still be running.
//
// Each call of a request needs a name of its own, for example "refund " and the item's id in a loop
// over items. A second Step with the same name in one run of the handler returns [ErrStep];
// otherwise it would return the first one's result without a call. After an error of fn, the same
// step may be tried again.
//
// Call Step before [Tx]: no transaction may be open.
func Step(ctx context.Context, name string, fn func(ctx context.Context, key string) ([]byte, error)) ([]byte, error) {
	x, ok := ctx.Value(servedRequestKey{}).(*servedRequest)
	switch {
	case !ok:
		return nil, fmt.Errorf("%w: the context does not belong to a request of a Layer", ErrStep)
	case x.handler.route.Mode != Leased:
		return nil, fmt.Errorf("%w: Route.Mode is Transactional: enqueue calls through package outbox, or choose Leased", ErrStep)
	case name == "" || len(name) > maxStepName:
		return nil, fmt.Errorf("%w: a step's name has 1 to %d bytes", ErrStep, maxStepName)
	}
	free, err := x.takeStepName(ctx, name)
	if err != nil {
		return nil, err
	}
	done := false
	defer func() {
		if !done {
			free()
		}
	}()
	result, err := x.runStep(ctx, name, fn)
	done = err == nil
	return result, err
}

// takeStepName takes a name for a step of the run that ctx belongs to. free gives the name back.
func (x *servedRequest) takeStepName(ctx context.Context, name string) (free func(), err error) {
	x.asking.Lock()
	defer x.asking.Unlock()
	names := x.steps
	_, taken := names[name]
	switch {
	case x.returned.Load(), ctx.Value(runKey{}) != x.runs:
		return nil, fmt.Errorf("%w: step %q after the handler's return", ErrStep, name)
	case x.tx != nil:
		return nil, fmt.Errorf("%w: step %q after Tx: no external call may be made while a transaction is open", ErrStep, name)
	case taken:
		return nil, fmt.Errorf("%w: step %q is used for the second time in one run of the handler, and its call would not be made: give each call its own name", ErrStep, name)
	}
	names[name] = struct{}{}
	return func() {
		x.asking.Lock()
		defer x.asking.Unlock()
		delete(names, name)
	}, nil
}

func (x *servedRequest) runStep(ctx context.Context, name string, fn func(ctx context.Context, key string) ([]byte, error)) ([]byte, error) {
	key := x.stepKey(name)
	if x.unprotected {
		return fn(ctx, key)
	}
	done, result, err := x.beginStep(ctx, name)
	if err != nil || done {
		return result, err
	}
	if err := fault.Point(fault.StepBegun); err != nil {
		return nil, err
	}
	result, err = fn(ctx, key)
	if err != nil {
		return nil, err
	}
	if len(result) > maxStepResult {
		return nil, fmt.Errorf("idempotency: step %q: its result has %d bytes, at most %d are remembered", name, len(result), maxStepResult)
	}
	if err := fault.Point(fault.StepCalled); err != nil {
		return nil, err
	}
	return result, x.endStep(name, result)
}

// stepKey returns the key for the provider. It does not depend on which process works on the
// request.
func (x *servedRequest) stepKey(name string) string {
	key := x.key
	if key == "" { // two requests without a key have nothing in common
		key = x.token.String()
	}
	sum := codec.Hash("onlyonce/http-step/1", x.scope.Tenant, x.subject.Scope, key, name)
	return codec.UUIDv8([16]byte(sum[:16])).String()
}

// beginStep records that the step's call may be made, before it is made.
func (x *servedRequest) beginStep(ctx context.Context, name string) (done bool, result []byte, err error) {
	if err := x.held.lossError(); err != nil {
		return false, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, x.layer.cfg.AcquireTimeout)
	defer cancel()
	l := x.held.lease
	var sealed, late bool
	err = x.layer.pool.QueryRow(ctx, stepSQL, l.ID, l.Epoch, l.Nonce, uuid.UUID(x.id), name, x.handler.route.KeyWindow-min(stepMargin, x.handler.route.KeyWindow/2),
		x.layer.cfg.Sealer != nil).
		Scan(&done, &result, &sealed, &late)
	if err != nil {
		return false, nil, x.stepError(name, err)
	}
	if late {
		x.outcomeUnknown = true
		return false, nil, fmt.Errorf("%w: step %q", ErrOutcomeUnknown, name)
	}
	if done {
		result, err = x.layer.unseal(codec.SealPlace(x.id, sealedStep, name), result, sealed)
	}
	return done, result, err
}

// endStep stores the result. It goes on even if the handler's context has ended: a result that is
// not stored makes the next run repeat the call.
func (x *servedRequest) endStep(name string, result []byte) error {
	result, sealed, err := x.layer.seal(codec.SealPlace(x.id, sealedStep, name), result)
	if err != nil {
		return err
	}
	retry := retryBackoff()
	l := x.held.lease
	for deadline := time.Now().Add(x.layer.cfg.AcquireTimeout); ; {
		ctx, cancel := context.WithDeadline(x.ctx, deadline)
		_, err = x.layer.pool.Exec(ctx, stepDoneSQL, l.ID, l.Epoch, l.Nonce, uuid.UUID(x.id), name, result, sealed)
		cancel()
		if err == nil {
			return fault.Point(fault.StepKept)
		}
		if guard.SQLState(err) == fenceLost || time.Now().After(deadline) {
			return x.stepError(name, err)
		}
		time.Sleep(retry.NextBackOff())
	}
}

func (x *servedRequest) stepError(name string, err error) error {
	if guard.SQLState(err) == fenceLost {
		x.held.markLost()
		return fmt.Errorf("step %q: %w", name, errLeaseLost)
	}
	return fmt.Errorf("idempotency: step %q: %w", name, err)
}
