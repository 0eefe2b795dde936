// Command webhook-ingest receives the webhooks of several senders on one server and applies each
// event once. Some endpoints store their events and apply them afterwards; others apply them in the
// transaction that claims them, by the same handler. It takes $ONLYONCE_POSTGRES_URL and a secret a
// sender, for example $STRIPE_SECRET.
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
	defer pool.Close()
	if _, err := pool.Exec(ctx, tableSQL); err != nil {
		return err
	}
	receivers, err := (&ingest{pool: pool}).receivers(os.Getenv)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	work, ctx := errgroup.WithContext(ctx)
	for name, r := range receivers {
		mux.Handle("/hooks/"+name, r)
		work.Go(func() error { return r.run(ctx) })
	}
	server := &http.Server{Addr: ":8080", Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	work.Go(func() error {
		if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	<-ctx.Done()
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return errors.Join(server.Shutdown(bounded), work.Wait()) // requests under way may end
}
