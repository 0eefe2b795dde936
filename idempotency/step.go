package idempotency

import (
	"context"
	"errors"
	"fmt"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/guard"
)

var (
	// ErrStep is returned if the handler cannot run a [Step] here: outside of lease mode, with an
	// empty or too long name, with a name that this run of the handler has used already, after
	// [TxOf], or after the handler's return.
	ErrStep = errors.New("idempotency: a step is not possible here")
	// ErrOutcomeUnknown is returned if another call of a step could repeat its effect: an earlier
	// attempt may have had it, but so long ago that the provider may have forgotten the key. The
	// layer sets the request aside for an operator, whatever the handler answers.
	ErrOutcomeUnknown = errors.New("idempotency: the step's outcome is unknown, and the provider may have " +
		"forgotten its key")
)

// maxStepName bounds a step's name, maxStepResult its result, in bytes.
const (
	maxStepName   = 200
	maxStepResult = 1 << 20
)

// Step makes an external call of a handler in lease mode and remembers its result. If the handler
// runs again, for example after a crash or a 5xx, Step returns the remembered result without a
// call. If the outcome of the call is unknown, Step repeats it under the same key; the effect
// happens once if the provider honours keys.
//
// fn gets the provider's idempotency key, a UUID in its canonical form. It derives from the
// request's scope and key and the step's name, so every attempt at this step has the same one, in
// any process. The context is the request's; it ends when the lease is lost. fn returns the result
// to remember, at most 1 MiB.
//
// A refusal that the provider has decided on, for example a declined card, is a result. An error
// means that the outcome is unknown: the next run of the handler repeats the call under the same
// key, within Route.KeyWindow. After that, Step asks Route.Reconcile, or returns
// [ErrOutcomeUnknown]. An answer like "key in use" or "in progress" is an error too, because the
// earlier attempt may still be running. Until the outcome is known, the layer does not keep the
// handler's answer: one of 400 or above releases the key, and one below 400 is not sent.
//
// Each call of a request needs a name of its own, for example "refund " and the item's id in a loop
// over items. A second Step with the same name in one run of the handler returns [ErrStep];
// otherwise it would return the first one's result without a call. After an error of fn, the same
// step may be tried again.
//
// Call Step before [TxOf]: no transaction may be open (H18, H26).
func Step(ctx context.Context, name string, fn func(ctx context.Context, key string) ([]byte, error)) ([]byte, error) {
	run, ok := ctx.Value(runKey{}).(*handlerRun)
	switch {
	case !ok:
		return nil, fmt.Errorf("%w: the context does not belong to a request of a Layer", ErrStep)
	case run.handler.route.Mode != Leased:
		return nil, fmt.Errorf("%w: Route.Mode is Transactional: enqueue calls through package outbox, or "+
			"choose Leased", ErrStep)
	case run.handler.route.NoCalls:
		return nil, fmt.Errorf("%w: Route.NoCalls is set: set Route.KeyWindow to how long the provider "+
			"remembers keys in its place", ErrStep)
	case name == "" || len(name) > maxStepName:
		return nil, fmt.Errorf("%w: a step's name must have 1 to %d bytes", ErrStep, maxStepName)
	}
	if err := run.takeStepName(name); err != nil {
		return nil, err
	}
	state := stepFailed // also if fn panics
	defer func() { run.setStep(name, state) }()
	result, state, err := run.runStep(ctx, name, fn)
	return result, err
}

// takeStepName takes a name for a step of the run.
func (run *handlerRun) takeStepName(name string) error {
	run.asking.Lock()
	defer run.asking.Unlock()
	state, known := run.steps[name]
	switch {
	case run.returned.Load():
		return fmt.Errorf("%w: step %q was called after the handler's return", ErrStep, name)
	case run.tx != nil:
		return fmt.Errorf("%w: step %q was called after Tx: call it before, because no external call may be "+
			"made while a transaction is open", ErrStep, name)
	case known && state <= stepRunning:
		return fmt.Errorf("%w: step %q is used for the second time in one run of the handler, and its call "+
			"would not be made: give each call its own name", ErrStep, name)
	}
	if run.steps == nil {
		run.steps = make(map[string]stepState)
	}
	run.steps[name] = stepRunning
	return nil
}

// setStep notes how a step has ended. Steps may run at the same time.
func (run *handlerRun) setStep(name string, state stepState) {
	run.asking.Lock()
	defer run.asking.Unlock()
	run.steps[name] = state
}

// openStep returns the state of the step that decides about the request. A step that still runs
// after the handler's return counts as one of unknown outcome.
func (run *handlerRun) openStep() (state stepState) {
	run.asking.Lock()
	defer run.asking.Unlock()
	for _, s := range run.steps {
		state = max(state, s)
	}
	return state
}

func (run *handlerRun) runStep(
	ctx context.Context,
	name string,
	fn func(ctx context.Context, key string) ([]byte, error),
) (result []byte, state stepState, err error) {
	key := run.stepKey(name)
	if run.unprotected {
		if result, err = fn(ctx, key); err != nil {
			return result, stepFailed, err
		}
		return result, stepDone, nil
	}
	done, result, err := run.beginStep(ctx, name)
	if errors.Is(err, ErrOutcomeUnknown) {
		if done, result, state, err = run.reconcileStep(ctx, name, key, err); state == stepAside {
			return nil, state, err
		}
	}
	if err != nil {
		return nil, stepFailed, err
	}
	if done {
		return result, stepDone, nil
	}
	if result, err = fn(ctx, key); err != nil {
		return nil, stepFailed, err
	}
	if len(result) > maxStepResult {
		return nil, stepFailed, fmt.Errorf("idempotency: step %q: its result has %d bytes, at most %d are remembered",
			name, len(result), maxStepResult)
	}
	if err := run.endStep(name, result); err != nil {
		return nil, stepFailed, err
	}
	return result, stepDone, nil
}

// reconcileStep asks the provider what became of a step whose key it may have forgotten (H29). If
// nothing is found out, the request is set aside for an operator.
func (run *handlerRun) reconcileStep(
	ctx context.Context,
	name, key string,
	unknown error,
) (done bool, result []byte, state stepState, err error) {
	ask := run.handler.route.Reconcile
	if ask == nil {
		return false, nil, stepAside, unknown
	}
	outcome, result, err := ask(ctx, name, key)
	switch {
	case err != nil: // not set aside: the next request asks again
		return false, nil, stepFailed, fmt.Errorf("idempotency: step %q: Route.Reconcile: %w", name, err)
	case outcome == StepNoEffect:
		return false, nil, stepRunning, nil
	case outcome != StepTookEffect:
		return false, nil, stepAside, unknown
	case len(result) > maxStepResult:
		return false, nil, stepFailed, fmt.Errorf("idempotency: step %q: Route.Reconcile: the result has %d "+
			"bytes, at most %d are remembered", name, len(result), maxStepResult)
	}
	if err := run.endStep(name, result); err != nil {
		return false, nil, stepFailed, err
	}
	return true, result, stepDone, nil
}

// stepKey returns the key for the provider. It does not depend on which process works on the
// request (H5).
func (req *servedRequest) stepKey(name string) string {
	key := req.key
	if key == "" { // two requests without a key have nothing in common
		key = req.token.String()
	}
	sum := codec.Hash("onlyonce/http-step/1", req.scope.Tenant, req.subject.Scope, key, name)
	return codec.UUIDv8([16]byte(sum[:16])).String()
}

// beginStep records that the step's call may be made, before it is made.
func (run *handlerRun) beginStep(ctx context.Context, name string) (done bool, result []byte, err error) {
	if err := run.held.lossError(); err != nil {
		return false, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, run.layer.cfg.AcquireTimeout)
	defer cancel()
	l := run.held.lease
	var sealed, tooLate bool
	err = run.layer.pool.QueryRow(
		ctx,
		stepSQL,
		l.ID,
		l.Epoch,
		l.Nonce,
		codec.UUID(run.id),
		name,
		run.handler.route.KeyWindow-min(stepMargin, run.handler.route.KeyWindow/2),
		run.layer.cfg.Sealer != nil,
	).
		Scan(&done, &result, &sealed, &tooLate)
	if err != nil {
		return false, nil, run.stepError(name, err)
	}
	if tooLate {
		return false, nil, fmt.Errorf("%w: step %q", ErrOutcomeUnknown, name)
	}
	if done {
		result, err = run.layer.unseal(sealPlace{run.id, sealedStep, name}, result, sealed)
	}
	return done, result, err
}

// endStep stores the result. It goes on even if the handler's context has ended: a result that is
// not stored makes the next run repeat the call (H16).
func (run *handlerRun) endStep(name string, result []byte) error {
	result, sealed, err := run.layer.seal(sealPlace{run.id, sealedStep, name}, result)
	if err != nil {
		return err
	}
	retry := retryBackoff()
	l := run.held.lease
	ctx, cancel := context.WithTimeout(run.ctx, run.layer.cfg.AcquireTimeout)
	defer cancel()
	for {
		_, err = run.layer.pool.Exec(ctx, stepDoneSQL, l.ID, l.Epoch, l.Nonce, codec.UUID(run.id), name, result, sealed)
		if err == nil {
			return nil
		}
		if guard.SQLState(err) == fenceLost || !pause(ctx, retry) {
			return run.stepError(name, err)
		}
	}
}

func (run *handlerRun) stepError(name string, err error) error {
	if guard.SQLState(err) == fenceLost {
		run.held.markLost()
		return fmt.Errorf("step %q: %w", name, errLeaseLost)
	}
	return fmt.Errorf("idempotency: step %q: %w", name, err)
}
