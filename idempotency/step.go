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
	// ErrStep says that a [Step] is none: outside of lease mode, without a name, under a name that this run of the handler has used, behind [Tx], or
	// behind the handler's return.
	ErrStep = errors.New("idempotency: no step is possible here")
	// ErrOutcomeUnknown says that an earlier attempt at a step may have had its effect, longer ago than the provider remembers its
	// key: asking again could do it twice. The request is set aside for an operator, whatever the handler answers.
	ErrOutcomeUnknown = errors.New("idempotency: the step's outcome is unknown, and too old to ask about")
)

// maxStepName bounds a step's name in bytes, maxStepResult its result.
const (
	maxStepName   = 200
	maxStepResult = 1 << 20
)

// Step makes an external call of a handler in lease mode, once as far as its provider honours keys, and remembers its result: when the
// request is sent again after a crash or a 5xx, the handler runs again, and Step returns what it returned then.
//
// fn gets the provider's idempotency key: derived from the request's record and the step's name, so that every attempt at this step of
// this request has it, whoever makes it. It is a UUID in its canonical form. The context is the request's, and ends when the lease is lost. fn returns what is to be
// remembered, up to 1 MiB: a refusal that the provider has decided on is a result too. An error means that nobody knows whether the call had an
// effect; the step is called again with the next request, under the same key, within Route.KeyWindow, and not after that: [ErrOutcomeUnknown].
//
// An answer of the provider that says "in use" or "in progress" is an error, not a result: the attempt before may still be under way.
//
// The name says which of a request's calls it is, so each call needs its own: "refund " and the item's id, in a loop over items. A second Step of a name in
// one run of the handler is [ErrStep], because it would return the first one's result and make no call. After an error of fn the name is free: the step may
// be tried again.
//
// No transaction may be open: call it before [Tx].
func Step(ctx context.Context, name string, fn func(ctx context.Context, key string) ([]byte, error)) ([]byte, error) {
	x, ok := ctx.Value(exchangeKey{}).(*exchange)
	switch {
	case !ok:
		return nil, fmt.Errorf("%w: the context is not that of a request of a Layer", ErrStep)
	case x.endpoint.route.Mode != Leased:
		return nil, fmt.Errorf("%w: Route.Mode is Transactional: enqueue calls through package outbox, or choose Leased", ErrStep)
	case name == "" || len(name) > maxStepName:
		return nil, fmt.Errorf("%w: a step's name has 1 to %d bytes", ErrStep, maxStepName)
	}
	free, err := x.nameStep(ctx, name)
	if err != nil {
		return nil, err
	}
	done := false
	defer func() {
		if !done {
			free()
		}
	}()
	result, err := x.step(ctx, name, fn)
	done = err == nil
	return result, err
}

// nameStep takes a name for a step of the run that ctx belongs to, or says why there can be none. free gives the name back.
func (x *exchange) nameStep(ctx context.Context, name string) (free func(), err error) {
	x.turn.Lock()
	defer x.turn.Unlock()
	names := x.steps
	_, taken := names[name]
	switch {
	case x.over.Load(), ctx.Value(runKey{}) != x.runs:
		return nil, fmt.Errorf("%w: step %q behind the handler's return", ErrStep, name)
	case x.tx != nil:
		return nil, fmt.Errorf("%w: step %q behind Tx: no external call while a transaction is open", ErrStep, name)
	case taken:
		return nil, fmt.Errorf("%w: step %q for the second time in one run of the handler: its call would not be made; name the steps apart", ErrStep, name)
	}
	names[name] = struct{}{}
	return func() {
		x.turn.Lock()
		defer x.turn.Unlock()
		delete(names, name)
	}, nil
}

func (x *exchange) step(ctx context.Context, name string, fn func(ctx context.Context, key string) ([]byte, error)) ([]byte, error) {
	key := x.stepKey(name)
	if x.bare {
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

// stepKey does not depend on who works on the request.
func (x *exchange) stepKey(name string) string {
	key := x.key
	if key == "" { // nothing joins two requests without one
		key = x.token.String()
	}
	sum := codec.Hash("onlyonce/http-step/1", x.scope.Tenant, x.subject.Scope, key, name)
	return codec.UUIDv8([16]byte(sum[:16])).String()
}

// beginStep notes that the step's call may be made, before it is.
func (x *exchange) beginStep(ctx context.Context, name string) (done bool, result []byte, err error) {
	if err := x.held.alive(); err != nil {
		return false, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, x.layer.cfg.AcquireTimeout)
	defer cancel()
	l := x.held.lease
	var sealed, late bool
	err = x.layer.pool.QueryRow(ctx, stepSQL, l.ID, l.Epoch, l.Nonce, uuid.UUID(x.id), name, x.endpoint.route.KeyWindow-min(stepMargin, x.endpoint.route.KeyWindow/2),
		x.layer.cfg.Sealer != nil).
		Scan(&done, &result, &sealed, &late)
	if err != nil {
		return false, nil, x.stepError(name, err)
	}
	if late {
		x.aside = true
		return false, nil, fmt.Errorf("%w: step %q", ErrOutcomeUnknown, name)
	}
	if done {
		result, err = x.layer.open(codec.SealPlace(x.id, sealedStep, name), result, sealed)
	}
	return done, result, err
}

// endStep keeps the result. It goes on when the handler's context has ended, because what is not kept here is asked for again.
func (x *exchange) endStep(name string, result []byte) error {
	result, sealed, err := x.layer.seal(codec.SealPlace(x.id, sealedStep, name), result)
	if err != nil {
		return err
	}
	retry := pauses()
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

func (x *exchange) stepError(name string, err error) error {
	if guard.SQLState(err) == fenceLost {
		x.held.lose()
		return fmt.Errorf("step %q: %w", name, errTaken)
	}
	return fmt.Errorf("idempotency: step %q: %w", name, err)
}
