package telemetry_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/telemetry"
)

// produced are messages of producers with a span each, or the same span for every two.
func produced(n int, pairs bool) (batch []*consumer.Message) {
	for i := range n {
		of := i
		if pairs {
			of /= 2
		}
		parent := fmt.Sprintf("00-4bf92f3577b34da6a3ce929d0e0e%04x-00f067aa0ba9%04x-01", 1+of, 1+of)
		batch = append(batch, &consumer.Message{
			Topic:   "orders",
			Offset:  int64(i),
			Time:    time.Now(),
			Headers: []consumer.Header{{Name: "traceparent", Value: []byte(parent)}},
		})
	}
	return batch
}

// applied runs the hooks of a transaction, with a message handler or a batch handler, and returns
// the spans that ended.
func applied(
	t *testing.T,
	with telemetry.Config,
	sampler trace.Sampler,
	batch []*consumer.Message,
	whole bool,
) (transaction trace.ReadOnlySpan, messages []trace.ReadOnlySpan) {
	t.Helper()
	recorded := tracetest.NewSpanRecorder()
	with.TracerProvider = trace.NewTracerProvider(trace.WithSpanProcessor(recorded), trace.WithSampler(sampler))
	c := consumer.Config{Scope: "stock"}
	if err := telemetry.Instrument(&c, with); err != nil {
		t.Fatal(err)
	}
	done := consumer.BatchResult{Batch: consumer.Batch{TopicPartition: source.TopicPartition{Topic: "orders"}, Messages: len(batch)}}
	ctx := c.Hooks.AttemptStart(t.Context(), done.Batch)
	ctx = c.Hooks.HandleBatchStart(ctx, batch)
	if !whole && c.Hooks.HandleStart != nil {
		for _, m := range batch {
			within := c.Hooks.HandleStart(ctx, m)
			if c.Hooks.HandleEnd != nil {
				c.Hooks.HandleEnd(within, m, context.Canceled)
			}
		}
	}
	c.Hooks.AttemptEnd(ctx, done, nil)
	for _, s := range recorded.Ended() {
		if s.Name() == "process orders" {
			transaction = s
		} else {
			messages = append(messages, s)
		}
	}
	return transaction, messages
}

// A transaction has a link to each producer of its messages, in their order, up to 128. Messages in
// a row of one producer's span have one link.
func TestLinksToProducers(t *testing.T) {
	t.Parallel()
	for _, whole := range []bool{false, true} {
		for _, c := range []struct {
			messages, links int
			pairs           bool
		}{{100, 100, false}, {100, 50, true}, {130, 128, false}, {1, 1, false}} {
			batch := produced(c.messages, c.pairs)
			span, others := applied(t, telemetry.Config{}, trace.AlwaysSample(), batch, whole)
			if len(others) > 0 || len(span.Links()) != c.links || span.DroppedLinks() > 0 {
				t.Errorf("%+v: %d links, %d dropped; %d other spans", c, len(span.Links()), span.DroppedLinks(), len(others))
				continue
			}
			for i, link := range span.Links() {
				if want := fmt.Sprintf("00f067aa0ba9%04x", 1+i); link.SpanContext.SpanID().String() != want ||
					!link.SpanContext.IsSampled() {
					t.Errorf("%+v: link %d is to %v, want %s", c, i, link.SpanContext, want)
				}
			}
		}
	}
}

// With a span for each message, it is below its producer's, with a link to the transaction's, and
// ends with its handler. Messages of a batch handler have none, and the transaction's span has the
// links then.
func TestSpansOfMessages(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		messages, spans, links int
		whole                  bool
	}{{3, 3, 0, false}, {1, 0, 1, true}, {3, 0, 3, true}} {
		batch := produced(c.messages, false)
		transaction, spans := applied(t, telemetry.Config{Messages: true}, trace.AlwaysSample(), batch, c.whole)
		if len(spans) != c.spans || len(transaction.Links()) != c.links {
			t.Errorf("%+v: %d spans, and the transaction has %d links", c, len(spans), len(transaction.Links()))
			continue
		}
		for i, s := range spans {
			if want := fmt.Sprintf("00f067aa0ba9%04x", 1+i); s.Parent().SpanID().String() != want {
				t.Errorf("%+v: span %d is below %v, want %s", c, i, s.Parent(), want)
			}
			if len(s.Links()) != 1 || s.Links()[0].SpanContext.SpanID() != transaction.SpanContext().SpanID() {
				t.Errorf("%+v: span %d has the links %v, want one to the transaction", c, i, s.Links())
			}
			of := map[string]string{}
			scope := s.InstrumentationScope().Attributes
			for _, a := range append(s.Attributes(), scope.ToSlice()...) {
				of[string(a.Key)] = a.Value.AsString()
			}
			if of["messaging.destination.name"] != "orders" || of["onlyonce.scope"] != "stock" || (of["error.type"] != "") == c.whole {
				t.Errorf("%+v: span %d has the attributes %v", c, i, of)
			}
		}
	}
}

// A transaction that is not sampled takes no links, and its hooks allocate nothing for a message.
func TestUnsampledTakesNothing(t *testing.T) {
	c := consumer.Config{Scope: "stock"}
	if err := telemetry.Instrument(&c, telemetry.Config{TracerProvider: trace.NewTracerProvider(
		trace.WithSampler(trace.NeverSample()),
	)}); err != nil {
		t.Fatal(err)
	}
	batch := produced(100, false)
	ctx := c.Hooks.AttemptStart(t.Context(), consumer.Batch{TopicPartition: source.TopicPartition{Topic: "orders"}, Messages: len(batch)})
	if n := testing.AllocsPerRun(10, func() {
		c.Hooks.HandleBatchStart(ctx, batch)
	}); n > 0 {
		t.Errorf("%v allocations for a hundred messages, want none", n)
	}
}
