// Command endpoint answers Stripe's webhooks once they are stored, and applies each event once.
package main

import (
	"context"
	"errors"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/webhook"
)

func paid(_ context.Context, tx consumer.Tx, m *consumer.Message) error {
	event, err := webhook.EventOf(m)
	if err != nil || event.Type != "invoice.paid" {
		return err // nil: an event of another type is done
	}
	tx.Queue(`insert into paid (event, invoice) values ($1, $2)`, event.ID, event.Body)
	return nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, os.Getenv("ONLYONCE_POSTGRES_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	endpoint, err := webhook.New(pool, webhook.Config{
		Name: "stripe", Provider: webhook.Stripe{}, Secrets: []string{os.Getenv("STRIPE_SECRET")},
	})
	if err != nil {
		return err
	}
	events, err := consumer.New(pool, endpoint, consumer.HandlerFunc(paid), consumer.Config{Scope: webhook.Scope("stripe")})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/hooks/stripe", endpoint)
	server := &http.Server{Addr: ":8080", Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return events.Run(ctx) })
	g.Go(func() error {
		if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		return server.Shutdown(last)
	})
	return g.Wait()
}
