package telemetry_test

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/telemetry"
	"github.com/onlyonce/onlyonce/telemetry/test/system"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// stuck is an exporter of spans that does not return until the test ends.
type stuck struct{ called, end chan struct{} }

func (s *stuck) ExportSpans(context.Context, []trace.ReadOnlySpan) error {
	select {
	case s.called <- struct{}{}:
	default:
	}
	<-s.end
	return nil
}

func (*stuck) Shutdown(context.Context) error { return nil }

// An exporter that never returns holds up nothing: the SDK drops what does not fit its queue.
func TestExporterThatBlocks(t *testing.T) {
	t.Parallel()
	s := &stuck{called: make(chan struct{}, 1), end: make(chan struct{})}
	spans := trace.NewTracerProvider(trace.WithBatcher(
		s,
		trace.WithMaxQueueSize(4),
		trace.WithMaxExportBatchSize(1),
		trace.WithBatchTimeout(time.Millisecond),
	))
	t.Cleanup(func() {
		close(s.end)
		_ = spans.Shutdown(context.Background())
	})
	r := start(t, telemetry.Config{TracerProvider: spans, Messages: true, Interval: time.Second})
	system.Order(r.Orders, 0, "first", time.Now())
	pgtest.Until(t, patience, "the exporter is stuck", func() bool {
		select {
		case <-s.called:
			return true
		default:
			return false
		}
	})
	const more = 50
	for i := range more {
		system.Order(r.Orders, 1+i, "another", time.Now())
	}
	delivered := `onlyonce_outbox_attempts_total{.*outcome="delivered".*sink="payments".*} ` + fmt.Sprint(more+1)
	pgtest.Until(t, patience, "all orders have become calls", func() bool {
		return regexp.MustCompile(delivered).MatchString(scrape(t, r.url+"/metrics", "text/plain"))
	})
}

// Ten thousand topics and partitions do not become as many series.
func TestTopicsAndPartitionsAreBounded(t *testing.T) {
	t.Parallel()
	reader := sdkmetric.NewManualReader()
	var c consumer.Config
	c.Scope = "stock"
	if err := telemetry.Instrument(&c, telemetry.Config{MeterProvider: sdkmetric.NewMeterProvider(
		sdkmetric.WithReader(reader),
	)}); err != nil {
		t.Fatal(err)
	}
	for i := range 10_000 {
		b := consumer.BatchResult{
			Batch: consumer.Batch{
				TopicPartition: source.TopicPartition{Topic: fmt.Sprintf("tenant-%d", i), Partition: int32(i)},
				Messages:       1,
			},
			Handled: 1,
		} //nolint:gosec // small
		c.Hooks.AttemptEnd(c.Hooks.AttemptStart(t.Context(), b.Batch), b, nil)
	}
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			sum, ok := m.Data.(metricdata.Sum[int64])
			if !ok || m.Name != "onlyonce.consumer.messages" {
				continue
			}
			if n := len(sum.DataPoints); n != 201*4 { // outcomes
				t.Errorf("%d series of messages, want those of 200 topics and of all others", n)
			}
			var total int64
			for _, p := range sum.DataPoints {
				total += p.Value
			}
			if total != 10_000 {
				t.Errorf("%d messages are counted, want 10000", total)
			}
		}
	}
}

// An idle system's counters are there, and stay at 0 while it works: it fetches, renews leases and
// asks for calls, and none of that is counted. Then each is counted once.
func TestIdleCountersAreZero(t *testing.T) {
	t.Parallel()
	r := start(t, telemetry.Config{})
	counter := regexp.MustCompile(`(?m)^(onlyonce_\S+_total|messaging_\S+_total|onlyonce_\S+_seconds_count)(\{.*\})? (\S+)$`)
	pgtest.Until(t, patience, "the counters of both consumers are there", func() bool {
		text := scrape(t, r.url+"/metrics", "text/plain")
		return strings.Contains(text, `scope="stock"`) && strings.Contains(text, `scope="audit"`)
	})
	before := r.fetches()
	pgtest.Until(t, patience, "the idle system has asked for work 500 times", func() bool { return r.fetches() >= before+500 })
	text := scrape(t, r.url+"/metrics", "text/plain")
	lines := counter.FindAllStringSubmatch(text, -1)
	if len(lines) < 20 {
		t.Errorf("there are only %d counters:\n%s", len(lines), text)
	}
	for _, l := range lines {
		if l[3] != "0" {
			t.Errorf("an idle system has %s", l[0])
		}
	}
}

// fetches is how many transactions the database has seen.
func (r *running) fetches() (n int64) {
	r.t.Helper()
	err := r.Pool.QueryRow(
		r.t.Context(),
		`select xact_commit + xact_rollback from pg_stat_database where datname = current_database()`,
	).Scan(&n)
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

// The histograms of a system that is traced have exemplars, which lead from a slow bucket to a
// trace.
func TestExemplars(t *testing.T) {
	t.Parallel()
	r := start(t, telemetry.Config{TracerProvider: trace.NewTracerProvider(), Messages: true, Interval: time.Second})
	const traceparent = "00-" + traceID + "-00f067aa0ba902b7-01"
	system.Order(r.Orders, 0, "a", time.Now(), consumer.Header{Name: "traceparent", Value: []byte(traceparent)})
	if status := r.post(system.Route, "{}", func(h http.Header) { h.Set("Idempotency-Key", "k1") }); status != http.StatusCreated {
		t.Fatalf("the layer answers %d", status)
	}
	if status := r.post("/hooks", "{}", func(h http.Header) { system.Sign(h, "one", []byte("{}")) }); status != http.StatusOK {
		t.Fatalf("the endpoint answers %d", status)
	}
	for _, name := range []string{
		"onlyonce_consumer_delay_seconds",
		"onlyonce_outbox_attempt_duration_seconds",
		"onlyonce_http_duration_seconds",
		"onlyonce_webhook_duration_seconds",
		"messaging_process_duration_seconds",
	} {
		exemplar := regexp.MustCompile(`(?m)^` + name + `_bucket\{.*\} \d\S* # \{.*trace_id="[0-9a-f]{32}".*\}`)
		pgtest.Until(t, patience, name+" has an exemplar", func() bool {
			return exemplar.MatchString(scrape(t, r.url+"/metrics", "application/openmetrics-text; version=1.0.0"))
		})
	}
}
