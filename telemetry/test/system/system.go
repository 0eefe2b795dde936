// Package system runs each part of onlyonce with telemetry, for tests and for the check of the
// dashboards: two consumers, a relay, an HTTP layer, a webhook endpoint and a queue, on one
// database.
package system

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	prometheus "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
	"golang.org/x/sync/errgroup"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/queue/queuetest"
	"github.com/onlyonce/onlyonce/seal"
	"github.com/onlyonce/onlyonce/telemetry"
	"github.com/onlyonce/onlyonce/webhook"
)

// Names of what the system has.
const (
	Endpoint = "github"                     // its route is /hooks, and its consumer's scope webhook/github
	Route    = "/v1/charges"                // of the HTTP layer
	Sink     = "payments"                   // calls to the remote's path /pay
	Brief    = "notes"                      // calls to the remote's path /note; it remembers keys for seconds only
	Poison   = "poison"                     // the payload of a message that is parked
	Failing  = "fails once"                 // the payload of a message whose handler fails the first time
	secret   = "It's a secret of this test" //nolint:gosec // of this test
)

// System is one process. Set its fields and call Run, once.
type System struct {
	Pool   *pgxpool.Pool
	Remote string           // the URL of what calls are sent to
	Orders *memlog.Log      // for the consumer of the scope "stock", which parks what fails
	Audits *memlog.Log      // for the consumer of the scope "audit", whose handler does nothing
	Missed []*webhook.Event // what the provider lists when it is asked for missed events

	// Telemetry says where traces go, and how often the database is asked. Its MeterProvider is the
	// system's own.
	Telemetry telemetry.Config
}

// Run runs every part until ctx ends. It calls serve with the handler of /metrics, of the layer's
// route and of the endpoint's.
func (s *System) Run(ctx context.Context, serve func(http.Handler)) error {
	registry := prometheus.NewRegistry()
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry))
	if err != nil {
		return err
	}
	meters := metric.NewMeterProvider(metric.WithReader(exporter))
	defer func() { _ = meters.Shutdown(context.WithoutCancel(ctx)) }()
	s.Telemetry.MeterProvider = meters

	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	var parts []func(context.Context) error
	var faults []error
	for _, begin := range []func(*http.ServeMux) (func(context.Context) error, error){
		s.stock,
		s.audit,
		s.relay,
		s.layer,
		s.endpoint,
		s.queue,
	} {
		run, err := begin(mux)
		parts, faults = append(parts, run), append(faults, err)
	}
	if err := errors.Join(faults...); err != nil {
		return err
	}
	all, ctx := errgroup.WithContext(ctx)
	for _, run := range parts {
		all.Go(func() error { return run(ctx) })
	}
	all.Go(func() error { return telemetry.Observe(ctx, s.Pool, s.Telemetry) })
	serve(mux)
	return all.Wait()
}

var errOnce = errors.New("this handler fails once")

// stock is the consumer that calls the remote for each order.
func (s *System) stock(*http.ServeMux) (func(context.Context) error, error) {
	cfg := consumer.Config{Scope: "stock", Key: consumer.HeaderKey("message-id"), Logger: slog.New(slog.DiscardHandler)}
	if err := telemetry.Instrument(&cfg, s.Telemetry); err != nil {
		return nil, err
	}
	c, err := consumer.New(
		s.Pool,
		&memlog.Source{Log: s.Orders, GroupID: "stock"},
		consumer.HandlerFunc(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			switch text := string(m.Value); {
			case text == Poison:
				return consumer.Permanent(errors.New("this message is not valid"))
			case text == Failing && m.Attempt < 2:
				return errOnce
			}
			for sink, path := range map[string]string{Sink: "/pay", Brief: "/note"} {
				if sink == Brief && m.Offset%50 != 0 {
					continue
				}
				if err := outbox.Enqueue(ctx, tx, outbox.Call{Sink: sink, Name: "order", Target: path, Body: m.Value}); err != nil {
					return err
				}
			}
			return nil
		}),
		cfg,
	)
	if err != nil {
		return nil, err
	}
	return c.Run, nil
}

func (s *System) audit(*http.ServeMux) (func(context.Context) error, error) {
	cfg := consumer.Config{Scope: "audit", Key: consumer.HeaderKey("message-id"), Logger: slog.New(slog.DiscardHandler)}
	if err := telemetry.Instrument(&cfg, s.Telemetry); err != nil {
		return nil, err
	}
	c, err := consumer.New(
		s.Pool,
		&memlog.Source{Log: s.Audits, GroupID: "audit"},
		consumer.HandlerFunc(func(context.Context, consumer.Tx, *consumer.Message) error { return nil }),
		cfg,
	)
	if err != nil {
		return nil, err
	}
	return c.Run, nil
}

func (s *System) relay(*http.ServeMux) (func(context.Context) error, error) {
	cfg := outbox.RelayConfig{PollInterval: 20 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)}
	var sinks []*httpsink.Sink
	for name, window := range map[string]time.Duration{Sink: time.Hour, Brief: 3 * time.Second} {
		sink, err := httpsink.New(httpsink.Config{
			Name:         name,
			BaseURL:      s.Remote,
			KeyWindow:    window,
			Timeout:      time.Second,
			AllowPrivate: true,
		})
		if err != nil {
			return nil, err
		}
		sinks, cfg.Sinks = append(sinks, sink), append(cfg.Sinks, sink)
	}
	if err := telemetry.Instrument(&cfg, s.Telemetry); err != nil {
		return nil, err
	}
	relay, err := outbox.NewRelay(s.Pool, cfg)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		defer func() {
			for _, sink := range sinks {
				sink.Close()
			}
		}()
		return relay.Run(ctx)
	}, nil
}

func (s *System) layer(mux *http.ServeMux) (func(context.Context) error, error) {
	cfg := idempotency.Config{
		Scope:           func(*http.Request) (idempotency.Scope, error) { return idempotency.Scope{Tenant: "one"}, nil },
		FingerprintKeys: seal.Keys{Current: 1, ByID: map[uint32]seal.Key{1: {1}}}, Logger: slog.New(slog.DiscardHandler)}
	if err := telemetry.Instrument(&cfg, s.Telemetry); err != nil {
		return nil, err
	}
	layer, err := idempotency.New(s.Pool, cfg)
	if err != nil {
		return nil, err
	}
	handler, err := layer.Handle(
		idempotency.Route{Pattern: Route, KeyWindow: 24 * time.Hour},
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }),
	)
	mux.Handle("POST "+Route, handler)
	return layer.Run, err
}

func (s *System) endpoint(mux *http.ServeMux) (func(context.Context) error, error) {
	handler := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		return outbox.Enqueue(ctx, tx, outbox.Call{Sink: Sink, Name: "event", Target: "/pay", Body: m.Value})
	}
	work := consumer.Config{Scope: webhook.Scope(Endpoint), Logger: slog.New(slog.DiscardHandler)}
	cfg := webhook.Config{
		Name:       Endpoint,
		Provider:   webhook.GitHub{},
		Secrets:    []string{secret},
		Partitions: 2,
		Logger:     slog.New(slog.DiscardHandler),
		Backfill: &webhook.Backfill{Every: time.Second, List: func(_ context.Context, _ time.Time, each func(*webhook.Event) error) error {
			for _, e := range s.Missed {
				if err := each(e); err != nil {
					return err
				}
			}
			return nil
		}},
	}
	if err := errors.Join(telemetry.Instrument(&cfg, s.Telemetry), telemetry.Instrument(&work, s.Telemetry)); err != nil {
		return nil, err
	}
	endpoint, err := webhook.New(s.Pool, cfg)
	if err != nil {
		return nil, err
	}
	worker, err := consumer.New(s.Pool, endpoint, consumer.HandlerFunc(handler), work)
	if err != nil {
		return nil, err
	}
	mux.Handle("/hooks", endpoint)
	return worker.Run, nil
}

// Messages is the path of requests that publish their body, which is the message's id too.
const Messages = "/messages"

// queue receives from a broker in memory what requests publish.
func (s *System) queue(mux *http.ServeMux) (func(context.Context) error, error) {
	cfg := queue.Config{Name: "orders", CopiesWithin: time.Hour, Logger: slog.New(slog.DiscardHandler)}
	if err := telemetry.Instrument(&cfg, s.Telemetry); err != nil {
		return nil, err
	}
	broker := &queuetest.Memory{}
	mux.HandleFunc("POST "+Messages, func(_ http.ResponseWriter, r *http.Request) {
		if body, err := io.ReadAll(r.Body); err == nil {
			broker.Publish(queue.Delivery{ID: string(body), Body: body})
		}
	})
	q, err := queue.New(s.Pool, broker.Connect(), cfg)
	if err != nil {
		return nil, err
	}
	return q.Receive, nil
}

// Sign makes a request of a GitHub webhook valid.
func Sign(h http.Header, id string, body []byte) {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write(body)
	h.Set("X-GitHub-Event", "push")
	h.Set("X-GitHub-Delivery", id)
	h.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
}

// Order appends an order to a log. Its id and time follow from n, so that another process that
// appends the same orders has the same log.
func Order(l *memlog.Log, n int, payload string, at time.Time, more ...consumer.Header) {
	l.AppendMessage(0, &consumer.Message{
		Value:   []byte(payload),
		Time:    at,
		Headers: append(more, consumer.Header{Name: "message-id", Value: fmt.Appendf(nil, "order-%d", n)}),
	})
}
