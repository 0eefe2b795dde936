package main

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/onlyonce/onlyonce/internal/metrics"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/outbox"
)

// relayAddresses are where a relay answers. Nil: not at all.
type relayAddresses struct{ health, metrics *string }

// serve answers at both addresses until stop. One address may be both.
func (at relayAddresses) serve(health http.Handler, measured *metrics.Registry, log *slog.Logger) (stop func(), err error) {
	type served struct {
		flag, path string // that are logged
		mux        *http.ServeMux
	}
	addresses := map[string]*served{}
	handle := func(flag string, address *string, path string, h http.Handler) {
		if address == nil {
			return
		}
		if addresses[*address] == nil {
			addresses[*address] = &served{flag, path, http.NewServeMux()}
		}
		addresses[*address].mux.Handle("GET "+path, h)
	}
	handle("-health", at.health, "/healthz", health)
	handle("-metrics", at.metrics, "/metrics", serveMetrics(func() []metrics.Sample {
		all := measured.Samples()
		for database, n := range primary.Refusals() {
			all = append(all, metrics.Sample{Metric: metrics.DatabaseRefusals, Values: []string{database}, Value: float64(n)})
		}
		return all
	}))

	var stops []func()
	stop = func() {
		for _, s := range stops {
			s()
		}
	}
	for address, s := range addresses {
		one, err := listen(s.flag, address, s.path, s.mux, log)
		if err != nil {
			return stop, err
		}
		stops = append(stops, one)
	}
	return stop, nil
}

// serveMetrics answers with samples in the text format of Prometheus.
func serveMetrics(samples func() []metrics.Sample) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", metrics.ContentType)
		_ = metrics.Write(w, samples()) // an error is the reader's, who is gone
	})
}

// measureRelay makes a relay count, by hooks. The counters of its sinks are there from the start,
// at 0.
func measureRelay(h *outbox.Hooks, sinks []outbox.Sink) *metrics.Registry {
	r := new(metrics.Registry)
	for _, s := range sinks {
		for _, outcome := range metrics.OutboxAttempts.Outcomes {
			r.Add(metrics.OutboxAttempts, 0, s.Name(), outcome)
		}
		r.Add(metrics.OutboxFailures, 0, s.Name())
	}
	type began struct{}
	h.AttemptStart = func(ctx context.Context, _ outbox.Attempt) context.Context {
		return context.WithValue(ctx, began{}, time.Now())
	}
	h.AttemptEnd = func(ctx context.Context, a outbox.Attempt, _ outbox.Result) {
		if at, ok := ctx.Value(began{}).(time.Time); ok && a.Kind == outbox.AttemptSend {
			r.Observe(metrics.OutboxAttemptDuration, time.Since(at).Seconds(), a.Sink)
		}
	}
	h.Settled = func(s outbox.Settled) {
		r.Add(metrics.OutboxAttempts, 1, s.Sink, string(s.State))
		if s.Final {
			r.Observe(metrics.OutboxDelay, s.Age.Seconds(), s.Sink)
		}
	}
	h.Failed = func(f outbox.Failed) { r.Add(metrics.OutboxFailures, 1, f.Sink) }
	return r
}
