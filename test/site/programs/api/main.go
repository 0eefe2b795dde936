// Command api creates a charge once for each Idempotency-Key of a customer, and gives each retry
// the first answer.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/seal"
)

// createCharge writes through the transaction that commits with the answer. Of an answer with a
// status of 5xx nothing is stored, and the key is free again.
func createCharge(w http.ResponseWriter, r *http.Request) {
	var in struct{ Amount int64 }
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		http.Error(w, "not JSON", http.StatusBadRequest)
		return
	}
	var id int64
	tx, err := idempotency.TxOf(r)
	if err == nil {
		err = tx.QueryRow(r.Context(), `insert into charges (amount) values ($1) returning id`, in.Amount).Scan(&id)
	}
	if err != nil {
		http.Error(w, "try again", http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, `{"id":%d}`, id)
}

// customerOf says whose key it is. Take it from what your authentication has verified.
func customerOf(r *http.Request) (idempotency.Scope, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return idempotency.Scope{}, errors.New("no client certificate")
	}
	return idempotency.Scope{Tenant: r.TLS.PeerCertificates[0].Subject.CommonName}, nil
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
	secret, err := seal.ParseKey(os.Getenv("FINGERPRINT_SECRET")) // openssl rand -hex 32
	if err != nil {
		return err
	}
	layer, err := idempotency.New(pool, idempotency.Config{
		Scope:           customerOf,
		FingerprintKeys: seal.Keys{Current: 1, ByID: map[uint32]seal.Key{1: secret}},
	})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("POST /v1/charges",
		layer.MustHandle(idempotency.Route{Pattern: "/v1/charges", NoCalls: true}, http.HandlerFunc(createCharge)))
	server := &http.Server{Addr: ":8443", Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return layer.Run(ctx) }) // returns at once if this process cannot serve
	g.Go(func() error {
		if err := server.ListenAndServeTLS("server.pem", "server.key"); !errors.Is(err, http.ErrServerClosed) {
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
