package telemetry

import (
	"context"
	"testing"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// What a message's headers name is what OpenTelemetry's propagator reads from them.
func TestSpanIsThePropagators(t *testing.T) {
	const of, id = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	for _, c := range []carried{
		{"", ""},
		{"00-" + of + "-" + id + "-01", ""},
		{"00-" + of + "-" + id + "-00", ""},
		{"00-" + of + "-" + id + "-03", ""},
		{"00-" + of + "-" + id + "-04", ""},
		{"00-" + of + "-" + id + "-0a", ""},
		{"00-" + of + "-" + id + "-0/", ""},
		{"00-" + of + "-" + id + "-11", ""},
		{"00-" + of + "-" + id + "-1", ""},
		{"00-" + of + "-" + id + "-01-", ""},
		{"00-" + of + "-" + id + "-01-x", ""},
		{"01-" + of + "-" + id + "-01", ""},
		{"01-" + of + "-" + id + "-01-x", ""},
		{"ff-" + of + "-" + id + "-01", ""},
		{"0x-" + of + "-" + id + "-01", ""},
		{"00-4BF92f3577b34da6a3ce929d0e0e4736-" + id + "-01", ""},
		{"00-" + of + "-00F067aa0ba902b7-01", ""},
		{"00-00000000000000000000000000000000-" + id + "-01", ""},
		{"00-" + of + "-0000000000000000-01", ""},
		{"00_" + of + "-" + id + "-01", ""},
		{"00-" + of + "_" + id + "-01", ""},
		{"00-" + of + "-" + id + "_01", ""},
		{"00-" + of + "-" + id + "-01", "a=1,b=2"},
		{"00-" + of + "-" + id + "-01", "not a state"},
		{"", "a=1"},
	} {
		want := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), c))
		if got := spanOf(c.parent, c.state); !got.Equal(want) {
			t.Errorf("%q: %v, want %v", c, got, want)
		}
		if got := spanOf([]byte(c.parent), []byte(c.state)); !got.Equal(want) {
			t.Errorf("%q in bytes: %v, want %v", c, got, want)
		}
	}
}
