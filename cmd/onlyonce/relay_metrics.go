package main

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/onlyonce/onlyonce/internal/metrics"
	"github.com/onlyonce/onlyonce/outbox"
)

// relayAddresses are where a relay answers. Nil: not at all.
type relayAddresses struct{ health, metrics *string }

// serve answers at both addresses until stop. One address may be both.
func (at relayAddresses) serve(health http.Handler, measured *metrics.Registry, log *slog.Logger) (stop func(), err error) {
	stops := []func(){}
	stop = func() {
		for _, s := range stops {
			s()
		}
	}
	add := func(flag string, address *string, path string, more ...string) {
		if address == nil || err != nil {
			return
		}
		mux := http.NewServeMux()
		for _, p := range append(more, path) {
			switch p {
			case "/healthz":
				mux.Handle("GET /healthz", health)
			case "/metrics":
				mux.Handle("GET /metrics", serveMetrics(measured.Samples))
			}
		}
		var s func()
		if s, err = listen(flag, *address, path, mux, log); err == nil {
			stops = append(stops, s)
		}
	}
	if at.health != nil && at.metrics != nil && *at.health == *at.metrics {
		add("-health", at.health, "/healthz", "/metrics")
		return stop, err
	}
	add("-health", at.health, "/healthz")
	add("-metrics", at.metrics, "/metrics")
	return stop, err
}

// serveMetrics answers with samples in the text format of Prometheus.
func serveMetrics(samples func() []metrics.Sample) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", metrics.ContentType)
		_ = metrics.Write(w, samples()) // an error is the reader's, who is gone
	})
}

// measureRelay makes a relay count, by hooks.
func measureRelay(h *outbox.Hooks) *metrics.Registry {
	r := new(metrics.Registry)
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
		r.Add(metrics.OutboxAttempts, 1, s.Sink, string(s.As))
		if s.As != outbox.SettledRetry && s.As != outbox.SettledAccepted {
			r.Observe(metrics.OutboxDelay, s.Age.Seconds(), s.Sink)
		}
	}
	h.Failed = func(f outbox.Failed) { r.Add(metrics.OutboxFailures, 1, f.Sink) }
	return r
}
