package main

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/onlyonce/onlyonce/internal/metrics"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/internal/program"
	"github.com/onlyonce/onlyonce/outbox"
)

// addresses are where a relay answers. Nil: not at all.
type addresses struct{ health, metrics *string }

// serve answers at both addresses until stop. One address may be both.
func (at addresses) serve(health http.Handler, measured *metrics.Registry, log *slog.Logger) (stop func(), err error) {
	type served struct {
		flag, path string // that are logged
		mux        *http.ServeMux
	}
	all := map[string]*served{}
	handle := func(flag string, address *string, path string, h http.Handler) {
		if address == nil {
			return
		}
		if all[*address] == nil {
			all[*address] = &served{flag, path, http.NewServeMux()}
		}
		all[*address].mux.Handle("GET "+path, h)
	}
	handle("-health", at.health, "/healthz", health)
	handle("-metrics", at.metrics, "/metrics", metrics.Handler(func() []metrics.Sample {
		samples := measured.Samples()
		for database, n := range primary.Refusals() {
			samples = append(samples, metrics.Sample{
				Metric: metrics.DatabaseRefusals,
				Values: []string{database},
				Value:  float64(n),
			})
		}
		return samples
	}))

	var stops []func()
	stop = func() {
		for _, s := range stops {
			s()
		}
	}
	for address, s := range all {
		one, err := program.Listen(s.flag, address, s.path, s.mux, log)
		if err != nil {
			return stop, err
		}
		stops = append(stops, one)
	}
	return stop, nil
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
	h.AttemptStart = func(ctx context.Context, _ outbox.AttemptEvent) context.Context {
		return context.WithValue(ctx, began{}, time.Now())
	}
	h.AttemptEnd = func(ctx context.Context, a outbox.AttemptEvent, _ outbox.Result) {
		if at, ok := ctx.Value(began{}).(time.Time); ok && a.Kind == outbox.AttemptSend {
			r.Observe(metrics.OutboxAttemptDuration, time.Since(at).Seconds(), a.Sink)
		}
	}
	h.Settled = func(s outbox.SettledEvent) {
		r.Add(metrics.OutboxAttempts, 1, s.Sink, string(s.State))
		if s.Final {
			r.Observe(metrics.OutboxDelay, s.Age.Seconds(), s.Sink)
		}
	}
	h.TransactionFailed = func(f outbox.TransactionFailedEvent) { r.Add(metrics.OutboxFailures, 1, f.Sink) }
	return r
}
