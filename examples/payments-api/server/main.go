// Command server serves the payments API of this folder. It takes $ONLYONCE_POSTGRES_URL,
// $PROVIDER_URL, $FINGERPRINT_SECRET and, for one account, $API_KEY.
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	payments "github.com/onlyonce/onlyonce/examples/payments-api"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx); err != nil {
		log.Fatal(err)
	}
}

func serve(ctx context.Context) error {
	key := os.Getenv("API_KEY")
	if key == "" {
		return errors.New("API_KEY is not set")
	}
	pool, err := pgxpool.New(ctx, os.Getenv("ONLYONCE_POSTGRES_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, payments.Schema); err != nil {
		return err
	}
	api, err := payments.New(pool, payments.Config{
		Accounts: map[string]string{key: "acct_1"}, Sink: "provider", Provider: os.Getenv("PROVIDER_URL"),
		Secret: sha256.Sum256([]byte(os.Getenv("FINGERPRINT_SECRET"))),
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 2)
	server := &http.Server{Addr: ":8080", Handler: api.Handler(), ReadHeaderTimeout: 10 * time.Second}
	go func() { ended <- server.ListenAndServe(); stop() }()
	go func() { ended <- api.Run(ctx); stop() }()
	<-ctx.Done()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	err = server.Shutdown(last) // requests under way are finished first
	for range 2 {
		if e := <-ended; !errors.Is(e, http.ErrServerClosed) {
			err = errors.Join(err, e)
		}
	}
	return err
}
