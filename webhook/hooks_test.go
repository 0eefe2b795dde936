package webhook_test

import (
	"context"
	"errors"
	"testing"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/webhook"
)

type spanKey struct{}

// An inline handler works in the context of ReceiveStart, and the calls that it enqueues carry the
// trace of that. Each request has a ReceiveEnd, refused ones too.
func TestHooksOfRequests(t *testing.T) {
	t.Parallel()
	const span = "00-11111111111111111111111111111111-2222222222222222-00"
	r := newRig(t)
	ended := make(chan webhook.ReceiveEnd, 10)
	e := r.serve(samples(t)["Stripe"], inline(func(ctx context.Context, tx consumer.Tx, _ *consumer.Message) error {
		return outbox.Enqueue(ctx, tx, outbox.Call{Sink: "payments", Name: "charge", Target: "/charges"})
	}), func(c *webhook.Config) {
		c.Hooks = webhook.JoinHooks(c.Hooks, webhook.Hooks{
			ReceiveStart: func(ctx context.Context, s webhook.ReceiveStart) context.Context {
				return context.WithValue(ctx, spanKey{}, span)
			},
			ReceiveEnd: func(ctx context.Context, s webhook.ReceiveEnd) {
				if of, _ := ctx.Value(spanKey{}).(string); of != span {
					t.Error("ReceiveEnd did not get ReceiveStart's context")
				}
				ended <- s
			},
		})
		c.Trace = func(ctx context.Context) string { of, _ := ctx.Value(spanKey{}).(string); return of }
	})
	next := func() (s webhook.ReceiveEnd) {
		r.until("ReceiveEnd is called", func() bool {
			select {
			case s = <-ended:
				return true
			default:
				return false
			}
		})
		return s
	}
	e.send(stripeBody("evt_1", "")).want(t, 200, false)
	if s := next(); s.Endpoint != "e" || s.Provider == "" || s.Status != 200 || s.Outcome != webhook.Accepted || s.Err != nil {
		t.Errorf("%+v", s)
	}
	e.send(stripeBody("evt_1", "")).want(t, 200, true)
	if s := next(); s.Outcome != webhook.Duplicate {
		t.Errorf("%+v", s)
	}
	resp, err := e.client.Get(e.url)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if s := next(); s.Status != 405 || s.Outcome != "" || s.Err == nil || errors.Is(s.Err, webhook.ErrSignature) {
		t.Errorf("%+v", s)
	}
	if got := one[string](r, `select trace from onlyonce.outbox_log`); got != span {
		t.Errorf("the call's trace is %q, want the span's", got)
	}
}
