// Command one-process runs a consumer, a webhook endpoint and a relay in one process, with an HTTP
// server for webhooks and probes. On SIGTERM it stops them in the order in which they depend on
// each other.
package main

import (
	"context"
	"errors"
	"log"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/kafkasource"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
	"github.com/onlyonce/onlyonce/webhook"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx); err != nil {
		log.Fatal(err)
	}
}

func serve(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, os.Getenv("ONLYONCE_POSTGRES_URL"))
	if err != nil {
		return err
	}
	defer pool.Close() // last: all parts use it
	source := kafkasource.New(kafkasource.Config{
		Brokers: []string{os.Getenv("ONLYONCE_KAFKA_BROKERS")}, GroupID: "billing", Topics: []string{"orders"},
	})
	orders, err := consumer.New(pool, source, consumer.HandlerFunc(charge), consumer.Config{
		Scope: "billing",
		Key:   consumer.HeaderKey("message-id"),
	})
	if err != nil {
		return err
	}
	payments, err := httpsink.New(httpsink.Config{Name: "payments", BaseURL: os.Getenv("PAYMENTS_URL"), KeyWindow: 24 * time.Hour})
	if err != nil {
		return err
	}
	defer payments.Close()
	relay, err := outbox.NewRelay(pool, outbox.RelayConfig{Sinks: []outbox.Sink{payments}})
	if err != nil {
		return err
	}
	stripe, err := webhook.New(pool, webhook.Config{
		Name: "stripe", Provider: webhook.Stripe{}, Secrets: []string{os.Getenv("STRIPE_SECRET")},
	})
	if err != nil {
		return err
	}
	events, err := consumer.New(pool, stripe, consumer.HandlerFunc(paid), consumer.Config{Scope: webhook.Scope("stripe")})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/hooks/stripe", stripe)
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := errors.Join(orders.Ready(), relay.Ready(), events.Ready()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) {
		if err := errors.Join(orders.Live(), events.Live()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	server := &http.Server{Addr: ":8080", Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	return runParts(ctx, server, relay.Run, orders.Run, events.Run)
}

// charge asks for a payment; the relay sends it after the commit.
func charge(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	return outbox.Enqueue(ctx, tx, outbox.Call{Sink: "payments", Name: "charge", Target: "/charges", Body: m.Value})
}

// paid writes down which invoices Stripe reports as paid.
func paid(_ context.Context, tx consumer.Tx, m *consumer.Message) error {
	event, err := webhook.EventOf(m)
	if err != nil || event.Type != "invoice.paid" {
		return err
	}
	tx.Queue(`insert into paid (event, invoice) values ($1, $2)`, event.ID, event.Body)
	return nil
}

// runParts runs all parts until ctx ends or one of them does. Then it stops them: first the server
// and the work, at the same time, and then the relay, which sends what they have enqueued last. It
// returns all errors.
func runParts(ctx context.Context, server *http.Server, relay func(context.Context) error, work ...func(context.Context) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	relayCtx, stopRelay := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRelay()
	var working, relaying sync.WaitGroup
	errs := make(chan error, len(work)+3)
	start := func(g *sync.WaitGroup, run func() error) {
		g.Go(func() {
			errs <- run()
			stop() // a part that ends, ends all
		})
	}
	start(&relaying, func() error { return relay(relayCtx) })
	for _, run := range work {
		start(&working, func() error { return run(ctx) })
	}
	start(&working, func() error {
		if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})

	<-ctx.Done()
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	errs <- server.Shutdown(bounded) // requests under way may end
	working.Wait()                   // and so may batches
	stopRelay()
	relaying.Wait()
	close(errs)
	var all []error
	for err := range errs {
		all = append(all, err)
	}
	return errors.Join(all...)
}
