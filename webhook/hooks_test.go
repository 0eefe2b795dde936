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
// trace of the context in which it enqueues them. Each request has a ReceiveEnd, refused ones too.
func TestHooksOfRequests(t *testing.T) {
	t.Parallel()
	const span = "00-11111111111111111111111111111111-2222222222222222-00"
	const within = "00-11111111111111111111111111111111-3333333333333333-00"
	r := newRig(t)
	ended := make(chan webhook.ReceiveEnd, 10)
	e := r.serve(samples(t)["Stripe"], inline(func(ctx context.Context, tx consumer.Tx, _ *consumer.Message) error {
		own := context.WithValue(ctx, spanKey{}, within)
		err := outbox.Enqueue(own, tx, outbox.Call{Sink: "payments", Name: "refund", Target: "/refunds"})
		if err != nil {
			return err
		}
		return outbox.Enqueue(ctx, tx, outbox.Call{Sink: "payments", Name: "charge", Target: "/charges"})
	}), func(c *webhook.Config) {
		c.Hooks = c.Hooks.Join(webhook.Hooks{
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
	s := next()
	good := s.Endpoint == "e" &&
		s.Provider != "" &&
		s.Status == 200 &&
		s.Outcome == webhook.Accepted &&
		s.Err == nil
	if !good {
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
	s = next()
	good = s.Status == 405 &&
		s.Outcome == "" &&
		s.Err != nil &&
		!errors.Is(s.Err, webhook.ErrSignature)
	if !good {
		t.Errorf("%+v", s)
	}
	got := one[string](r, `select string_agg(trace, ' ' order by trace) from onlyonce.outbox_log`)
	if got != span+" "+within {
		t.Errorf("the calls' traces are %q, want the spans'", got)
	}
}

// A stored event carries the trace of its request to the handler, as headers of the message and not
// of the event. What is no trace context is left out.
func TestStoredEventCarriesTheTrace(t *testing.T) {
	t.Parallel()
	const span = "00-11111111111111111111111111111111-2222222222222222-00"
	r := newRig(t)
	trace := span + "\nvendor=1"
	e := r.serve(samples(t)["Stripe"], func(c *webhook.Config) { c.Trace = func(context.Context) string { return trace } })
	e.send(stripeBody("evt_1", "")).want(t, 200, false)
	trace = "garbage \xff"
	e.send(stripeBody("evt_2", "")).want(t, 200, false)
	headers := func(id string) *consumer.Message {
		m := &consumer.Message{Topic: webhook.Topic("e")}
		var names []string
		var values [][]byte
		if err := r.pool.QueryRow(t.Context(), `select header_names, header_values from onlyonce.event_log where id like '%/' || $1`,
			id).Scan(
			&names,
			&values,
		); err != nil {
			t.Fatal(err)
		}
		for i, name := range names {
			m.Headers = append(m.Headers, consumer.Header{Name: name, Value: values[i]})
		}
		return m
	}
	first := headers("evt_1")
	for name, want := range map[string]string{"traceparent": span, "tracestate": "vendor=1"} {
		if got, _ := first.Header(name); string(got) != want {
			t.Errorf("the stored event has %s %q, want %q", name, got, want)
		}
	}
	event, err := webhook.EventOf(first)
	if err != nil {
		t.Fatal(err)
	}
	if _, has := event.Header["traceparent"]; has { //nolint:staticcheck // this spelling is the one that must not be there
		t.Error("the event has a header that its sender did not send")
	}
	if got, has := headers("evt_2").Header("traceparent"); has {
		t.Errorf("the second event has the trace %q, want none", got)
	}
}
