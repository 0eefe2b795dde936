package httpsink_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
)

// A trace context among the row's headers is sent as it is. A row without one can get one when it
// is sent, which is not compared when the call is enqueued again.
func TestTraceContext(t *testing.T) {
	const frozen, own = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	var got http.Header
	base, requests := serve(t, func(_ http.ResponseWriter, r *http.Request) { got = r.Header.Clone() })
	row := delivery()
	row.Header = http.Header{"Traceparent": {frozen}, "Tracestate": {"a=1,b=2"}}
	if r := newSink(t, base).Send(t.Context(), row); r.Outcome != outbox.Delivered ||
		got.Get("Traceparent") != frozen ||
		got.Get("Tracestate") != "a=1,b=2" {
		t.Errorf("%+v, sent %v", r, got)
	}
	s := newSink(t, base, func(c *httpsink.Config) {
		c.Authorize = httpsink.SecretHeader("Traceparent", func(context.Context) (string, error) { return own, nil })
	})
	if r := s.Send(t.Context(), delivery()); r.Outcome != outbox.Delivered || got.Get("Traceparent") != own {
		t.Errorf("%+v, sent %v", r, got)
	}
	traced := delivery()
	traced.Trace = own + "\nc=3"
	if newSink(t, base).Send(t.Context(), traced).Outcome != outbox.Delivered ||
		got.Get("Traceparent") != own ||
		got.Get("Tracestate") != "c=3" {
		t.Errorf("the call's trace context: sent %v", got)
	}
	both := delivery()
	both.Header = row.Header
	both.Trace = own + "\nc=3"
	if newSink(t, base).Send(t.Context(), both).Outcome != outbox.Delivered ||
		got.Get("Traceparent") != frozen ||
		got.Get("Tracestate") != "a=1,b=2" {
		t.Errorf("beside a frozen one: sent %v", got)
	}
	before := requests.Load()
	if r := s.Send(t.Context(), row); r.Outcome != outbox.Postponed || requests.Load() != before {
		t.Errorf("a frozen one was replaced: %+v", r)
	}
}
