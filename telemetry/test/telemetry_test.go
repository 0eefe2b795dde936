package telemetry_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
	"github.com/onlyonce/onlyonce/telemetry"
	"github.com/onlyonce/onlyonce/telemetry/test/system"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// patience bounds what the tests wait for.
var patience = pgtest.Patience(time.Minute)

// pipeline is a consumer, a relay and a remote, with telemetry that a test can read.
type pipeline struct {
	t        *testing.T
	spans    *tracetest.SpanRecorder
	reader   *metric.ManualReader
	log      *memlog.Log
	received chan http.Header // of the requests that the remote got
}

func newPipeline(t *testing.T, messages bool) *pipeline {
	s := &pipeline{
		t:        t,
		spans:    tracetest.NewSpanRecorder(),
		reader:   metric.NewManualReader(),
		log:      memlog.NewLog("orders", 1),
		received: make(chan http.Header, 100),
	}
	with := telemetry.Config{TracerProvider: trace.NewTracerProvider(trace.WithSpanProcessor(s.spans)),
		MeterProvider: metric.NewMeterProvider(metric.WithReader(s.reader)), Messages: messages}
	remote := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { s.received <- r.Header.Clone() }))
	t.Cleanup(remote.Close)
	sink, err := httpsink.New(httpsink.Config{Name: "payments", BaseURL: remote.URL, KeyWindow: time.Hour, AllowPrivate: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sink.Close)
	pool := pgtest.DB(t)
	ofRelay := outbox.RelayConfig{Sinks: []outbox.Sink{sink}, PollInterval: 10 * time.Millisecond}
	ofConsumer := consumer.Config{Scope: "stock", Key: consumer.HeaderKey("message-id")}
	for _, err := range []error{telemetry.Instrument(&ofRelay, with), telemetry.Instrument(&ofConsumer, with)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	relay, err := outbox.NewRelay(pool, ofRelay)
	if err != nil {
		t.Fatal(err)
	}
	c, err := consumer.New(
		pool,
		&memlog.Source{Log: s.log, GroupID: "stock"},
		consumer.HandlerFunc(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			return outbox.Enqueue(ctx, tx, outbox.Call{Sink: "payments", Name: "charge", Body: m.Value})
		}),
		ofConsumer,
	)
	if err != nil {
		t.Fatal(err)
	}
	for _, run := range []func(context.Context) error{relay.Run, c.Run} {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- run(ctx) }()
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	return s
}

// call waits for the next request that the remote gets.
func (s *pipeline) call() (h http.Header) {
	s.t.Helper()
	pgtest.Until(s.t, patience, "the remote gets the call", func() bool {
		select {
		case h = <-s.received:
			return true
		default:
			return false
		}
	})
	return h
}

// metrics returns what was measured, as JSON, and its names.
func (s *pipeline) metrics() (text string, names []string) {
	s.t.Helper()
	var all metricdata.ResourceMetrics
	if err := s.reader.Collect(s.t.Context(), &all); err != nil {
		s.t.Fatal(err)
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			names = append(names, m.Name)
		}
	}
	b, err := json.Marshal(all.ScopeMetrics)
	if err != nil {
		s.t.Fatal(err)
	}
	slices.Sort(names)
	return string(b), names
}

const (
	traceID     = "4bf92f3577b34da6a3ce929d0e0e4736"
	traceparent = "00-" + traceID + "-00f067aa0ba902b7-01"
)

// With a span for each message, the producer, the message and the call are one trace, and the
// remote's parent is the message's span. The message has a link to the transaction, the attempt one
// to the message.
func TestOneTraceFromProducerToRemote(t *testing.T) {
	t.Parallel()
	s := newPipeline(t, true)
	s.log.Append(0, "secret payload", consumer.Header{Name: "message-id", Value: []byte("secret id")},
		consumer.Header{Name: "traceparent", Value: []byte(traceparent)})
	got := s.call().Get("traceparent")
	if !strings.Contains(got, traceID) || got == traceparent {
		t.Errorf("the remote got %q, want the trace %s below another span than the producer's", got, traceID)
	}
	span := map[string]trace.ReadOnlySpan{}
	pgtest.Until(t, patience, "all spans have ended", func() bool {
		for _, ended := range s.spans.Ended() {
			span[ended.Name()] = ended
		}
		return span["process orders"] != nil && span["handle orders"] != nil && span["send payments"] != nil
	})
	message := span["handle orders"].SpanContext()
	if !strings.Contains(got, message.SpanID().String()) || message.TraceID().String() != traceID {
		t.Errorf("the remote got %q, want the span %s", got, message.SpanID())
	}
	if links := span["handle orders"].Links(); len(links) != 1 ||
		links[0].SpanContext.SpanID() != span["process orders"].SpanContext().SpanID() {
		t.Errorf("the message's links: %v, want one to the transaction's span", links)
	}
	if links := span["send payments"].Links(); len(links) != 1 || links[0].SpanContext.SpanID() != message.SpanID() {
		t.Errorf("the attempt's links: %v", links)
	}
	want := []string{
		"messaging.client.consumed.messages", "messaging.client.operation.duration",
		"messaging.client.sent.messages", "messaging.process.duration", "onlyonce.consumer.delay",
		"onlyonce.consumer.hung", "onlyonce.consumer.messages", "onlyonce.consumer.retries",
		"onlyonce.database.refusals", "onlyonce.outbox.attempt.duration",
		"onlyonce.outbox.attempts", "onlyonce.outbox.delay", "onlyonce.outbox.failures",
	}
	text := ""
	pgtest.Until(t, patience, "the metrics are there", func() bool {
		var names []string
		text, names = s.metrics()
		return slices.Equal(names, want)
	})
	for _, ended := range s.spans.Ended() {
		for _, a := range ended.Attributes() {
			text += " " + a.Value.String()
		}
	}
	if strings.Contains(text, "secret") {
		t.Error("an attribute holds an id or a payload")
	}
}

// Without, the call is a part of the transaction's trace, and the transaction has a link to the
// producer. A header that is no trace context is ignored.
func TestTraceOfTheTransaction(t *testing.T) {
	t.Parallel()
	s := newPipeline(t, false)
	s.log.Append(0, "v",
		consumer.Header{Name: "message-id", Value: []byte("linked")},
		consumer.Header{Name: "traceparent", Value: []byte(traceparent)})
	s.call()
	pgtest.Until(t, patience, "the transaction's span has a link to the producer", func() bool {
		return slices.ContainsFunc(s.spans.Ended(), func(ended trace.ReadOnlySpan) bool {
			links := ended.Links()
			return ended.Name() == "process orders" && len(links) == 1 && links[0].SpanContext.TraceID().String() == traceID
		})
	})
	for i, bad := range []string{"", "garbage", strings.Repeat("0", 1<<20)} {
		s.log.Append(0, "v",
			consumer.Header{Name: "message-id", Value: []byte{byte('a' + i)}},
			consumer.Header{Name: "traceparent", Value: []byte(bad)})
		got := s.call().Get("traceparent")
		pgtest.Until(t, patience, "the transaction's span is the remote's parent", func() bool {
			return slices.ContainsFunc(s.spans.Ended(), func(ended trace.ReadOnlySpan) bool {
				return ended.Name() == "process orders" &&
					len(ended.Links()) == 0 &&
					strings.Contains(got, ended.SpanContext().SpanID().String())
			})
		})
	}
}

// A system that does nothing makes no spans and counts nothing.
func TestIdle(t *testing.T) {
	t.Parallel()
	s := newPipeline(t, true)
	s.log.Append(0, "v", consumer.Header{Name: "message-id", Value: []byte("a")})
	s.call()
	pgtest.Until(t, patience, "the call's span has ended", func() bool {
		return slices.ContainsFunc(s.spans.Ended(), func(ended trace.ReadOnlySpan) bool { return ended.Name() == "send payments" })
	})
	if n := len(s.spans.Ended()); n != 3 {
		t.Errorf("%d spans for one message and one call, want 3: the group's and the relay's own work makes none", n)
	}
}

// A stored webhook is in one trace from its request through its handler to the attempt at its call.
func TestStoredWebhookIsOneTrace(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	r := start(t, telemetry.Config{
		TracerProvider: trace.NewTracerProvider(trace.WithSpanProcessor(spans)),
		Messages:       true,
		Interval:       time.Second,
	})
	if status := r.post("/hooks", "{}", func(h http.Header) { system.Sign(h, "one", []byte("{}")) }); status != http.StatusOK {
		t.Fatalf("the endpoint answers %d", status)
	}
	named := map[string]trace.ReadOnlySpan{}
	pgtest.Until(t, patience, "the request, its handler and the attempt have ended", func() bool {
		for _, ended := range spans.Ended() {
			named[ended.Name()] = ended
		}
		return named["receive github"] != nil && named["handle webhook.github"] != nil && named["send payments"] != nil
	})
	request, handler := named["receive github"].SpanContext(), named["handle webhook.github"]
	if handler.Parent().SpanID() != request.SpanID() || handler.SpanContext().TraceID() != request.TraceID() {
		t.Errorf("the handler's span is below %s of trace %s, want the request's",
			handler.Parent().SpanID(), handler.SpanContext().TraceID())
	}
	if links := named["send payments"].Links(); len(links) != 1 || links[0].SpanContext.SpanID() != handler.SpanContext().SpanID() {
		t.Errorf("the attempt's links: %v, want one to the handler's span", links)
	}
}
