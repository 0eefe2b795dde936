package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/origin"
	"github.com/onlyonce/onlyonce/outbox"
)

// attempts are pairs of AttemptStart and AttemptEnd that a test has seen.
type attempts struct {
	t    *testing.T
	mu   sync.Mutex
	open map[int]outbox.AttemptEvent
	n    int
	done []string // kind, number of the attempt, outcome
}

type attemptKey struct{}

func (a *attempts) hooks() outbox.Hooks {
	a.open = map[int]outbox.AttemptEvent{}
	return outbox.Hooks{
		AttemptStart: func(ctx context.Context, at outbox.AttemptEvent) context.Context {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.n++
			a.open[a.n] = at
			return context.WithValue(ctx, attemptKey{}, a.n)
		},
		AttemptEnd: func(ctx context.Context, at outbox.AttemptEvent, r outbox.Result) {
			a.mu.Lock()
			defer a.mu.Unlock()
			n, _ := ctx.Value(attemptKey{}).(int)
			if begun, ok := a.open[n]; !ok || begun != at {
				a.t.Errorf("the end of %+v, which began as %+v", at, begun)
			}
			delete(a.open, n)
			a.done = append(a.done, fmt.Sprint(at.Kind, " ", at.Number, " ", r.Outcome))
		},
	}
}

// want waits until every attempt has ended, and compares them.
func (a *attempts) want(want ...string) {
	a.t.Helper()
	until(a.t, "each attempt has ended", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.open) == 0 && len(a.done) >= len(want)
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.Equal(a.done, want) {
		a.t.Errorf("attempts %q, want %q", a.done, want)
	}
}

// Each attempt has a Start and an End, whatever the sink does, and the sink's context is Start's.
func TestHooksOfAttempts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sink := newScripted(func(ctx context.Context, a *outbox.Attempt) outbox.Result {
		if ctx.Value(attemptKey{}) == nil {
			t.Error("the sink's context does not derive from AttemptStart's")
		}
		switch a.Number {
		case 1:
			return outbox.Failure("no answer", nil)
		case 2:
			panic("kaboom")
		case 3:
			runtime.Goexit()
		}
		return outbox.Result{Outcome: outbox.Delivered, Response: &outbox.Response{Status: 201}}
	})
	seen := &attempts{t: t}
	cfg := testConfig(sink)
	cfg.Hooks = seen.hooks()
	first := true
	cfg.Complete = func(ctx context.Context, _ dedupe.GuardedTx, _ *outbox.Attempt, _ *outbox.Response) error {
		if ctx.Value(attemptKey{}) == nil {
			t.Error("the context of Complete does not derive from AttemptStart's")
		}
		if first {
			first = false
			return errors.New("not yet")
		}
		return nil
	}
	call := charge("1")
	call.Capture = true
	r.enqueue(call)
	r.start(cfg)
	r.states("delivered")
	seen.want("send 1 retry", "send 2 retry", "send 3 retry", "send 4 delivered", "complete 5 retry", "complete 6 delivered")
}

// A reconciliation is an attempt too: it ends as delivered if the remote has applied the call.
func TestHooksOfReconciliations(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue(charge("1"))
	lost := newScripted(func(context.Context, *outbox.Attempt) outbox.Result { return outbox.Failure("no answer", nil) })
	x := r.start(testConfig(lost))
	r.states("retrying")
	x.stop()
	r.exec(`update onlyonce.parked set attempts = 1, state = 'reconcile', reason = 'window', next_attempt_at = clock_timestamp()`)
	seen := &attempts{t: t}
	cfg := testConfig(newScripted(accept))
	cfg.Hooks = seen.hooks()
	first := true
	cfg.Reconcile = func(ctx context.Context, _ *outbox.Attempt) (bool, error) {
		if ctx.Value(attemptKey{}) == nil {
			t.Error("the context of Reconcile does not derive from AttemptStart's")
		}
		if first {
			first = false
			return false, errors.New("not known yet")
		}
		return true, nil
	}
	r.start(cfg)
	r.states("delivered")
	seen.want("reconcile 1 retry", "reconcile 1 delivered")
}

// In a SendBatch each call has its own pair, also one whose end the sink does not report.
func TestHooksOfBatches(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	silent := true
	sink := newBatching(accept)
	sides := sink.batch
	sink.batch = func(ctx context.Context, calls []*outbox.Attempt, ended func(int, outbox.Result)) {
		if silent {
			silent = false
			return
		}
		sides(ctx, calls, ended)
	}
	seen := &attempts{t: t}
	cfg := testConfig(sink)
	cfg.Hooks = seen.hooks()
	r.enqueue(charge("1"))
	r.start(cfg)
	r.states("delivered")
	// The second attempt is made alone: the call is parked.
	seen.want("send 1 retry", "send 2 delivered")
}

// A hook that panics, or returns no context, changes nothing.
func TestAttemptsWithHooksThatPanic(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	cfg := testConfig(newScripted(accept))
	cfg.Hooks = outbox.Hooks{
		AttemptStart: func(context.Context, outbox.AttemptEvent) context.Context { return nil },
		AttemptEnd:   func(context.Context, outbox.AttemptEvent, outbox.Result) { panic("kaboom") },
	}
	r.enqueue(charge("1"), charge("2"))
	r.start(cfg)
	r.states("delivered")
}

// In a handler, a call carries the trace of Enqueue's context. If there is none, or the user's
// function panics or returns no trace, it carries the message's.
func TestTraceOfTheContext(t *testing.T) {
	t.Parallel()
	const (
		ofMessage = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
		ofContext = "00-11111111111111111111111111111111-2222222222222222-00"
	)
	for name, c := range map[string]struct {
		of   func(context.Context) string
		want string
	}{
		"none":     {nil, ofMessage},
		"empty":    {func(context.Context) string { return "" }, ofMessage},
		"panics":   {func(context.Context) string { panic("kaboom") }, ofMessage},
		"no trace": {func(context.Context) string { return "00-\x00" }, ofMessage},
		"a trace":  {func(context.Context) string { return ofContext }, ofContext},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			if err := r.handled(origin.Origin{Scope: "s", ID: "m", Trace: ofMessage, TraceOf: c.of}, charge("1")); err != nil {
				t.Fatal(err)
			}
			if got := one[string](r, `select trace from onlyonce.outbox_log`); got != c.want {
				t.Errorf("trace %q, want %q", got, c.want)
			}
		})
	}
}
