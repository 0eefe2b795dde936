package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/idempotency"
)

// A 402 is final by its status. This handler decides about one of them: a card that may be topped
// up is not refused for good, so the next request under the key runs again.
func ExampleTransient() {
	pool, end := exampleDatabase(`create table charges (amount bigint not null)`)
	defer end()
	layer, err := idempotency.New(pool, exampleConfig())
	if err != nil {
		fmt.Println(err)
		return
	}
	funds := 0
	charge := func(w http.ResponseWriter, r *http.Request) {
		tx, err := idempotency.TxOf(r)
		if err != nil {
			http.Error(w, "internal", http.StatusInternalServerError)
			return
		}
		tx.Queue(`insert into charges values (500)`)
		if funds < 500 {
			idempotency.Transient(r) // undone, and not stored
			w.Header().Set("Retry-After", "3600")
			http.Error(w, "no funds at the moment", http.StatusPaymentRequired)
			return
		}
		fmt.Fprint(w, "charged")
	}
	server := httptest.NewServer(layer.MustHandle(idempotency.Route{Pattern: "/v1/charges", NoCalls: true}, http.HandlerFunc(charge)))
	defer server.Close()

	show(server.URL, "order-19", "")
	funds = 1000
	show(server.URL, "order-19", "")
	show(server.URL, "order-19", "")
	// Output:
	// 402 released: no funds at the moment
	// 200 created: charged
	// 200 replayed: charged
}

// A 503 is not stored. This one is: the bank is closed for good, and no copy of the request is to
// try again.
func ExampleFinal() {
	pool, end := exampleDatabase(`select`)
	defer end()
	layer, err := idempotency.New(pool, exampleConfig())
	if err != nil {
		fmt.Println(err)
		return
	}
	server := httptest.NewServer(layer.MustHandle(
		idempotency.Route{Pattern: "/v1/payouts", NoCalls: true},
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			idempotency.Final(r)
			http.Error(w, "the bank does not exist any more", http.StatusServiceUnavailable)
		}),
	))
	defer server.Close()

	show(server.URL, "payout-4", "")
	show(server.URL, "payout-4", "")
	// Output:
	// 503 created: the bank does not exist any more
	// 503 replayed: the bank does not exist any more
}

// An answer with a card's number: the record keeps the card's id, and copies of the request get the
// body made of the row again.
func ExampleReference() {
	pool, end := exampleDatabase(`create table cards (id text primary key, number text not null)`)
	defer end()
	layer, err := idempotency.New(pool, exampleConfig())
	if err != nil {
		fmt.Println(err)
		return
	}
	body := func(id, number string) []byte { return fmt.Appendf(nil, "card %s: %s", id, number) }
	render := func(ctx context.Context, _ idempotency.Scope, id string) ([]byte, error) {
		var number string
		err := pool.QueryRow(ctx, `select number from cards where id = $1`, id).Scan(&number)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil, idempotency.ErrReferenceGone // copies get 410
		}
		return body(id, number), err
	}
	issue := func(w http.ResponseWriter, r *http.Request) {
		tx, err := idempotency.TxOf(r)
		if err == nil {
			tx.Queue(`insert into cards values ('card_1', '4242 4242')`)
			err = idempotency.Reference(r, "card_1")
		}
		if err != nil {
			http.Error(w, "internal", http.StatusInternalServerError)
			return
		}
		_, _ = w.Write(body("card_1", "4242 4242"))
	}
	server := httptest.NewServer(layer.MustHandle(
		idempotency.Route{Pattern: "/v1/cards", NoCalls: true, Render: render},
		http.HandlerFunc(issue),
	))
	defer server.Close()

	show(server.URL, "card-7", "")
	show(server.URL, "card-7", "")
	_, err = pool.Exec(context.Background(), `delete from cards`)
	show(server.URL, "card-7", "")
	fmt.Println(err)
	// Output:
	// 200 created: card card_1: 4242 4242
	// 200 replayed: card card_1: 4242 4242
	// 410 replayed: The request took effect, but its response is not stored
	// <nil>
}

// The bank may have forgotten a call's key before the request comes back. Then it is asked what
// became of the call, by the reference that the call contained, before an operator has to.
func ExampleRoute_reconcile() {
	pool, end := exampleDatabase(`select`)
	defer end()
	layer, err := idempotency.New(pool, exampleConfig())
	if err != nil {
		fmt.Println(err)
		return
	}
	transfers := map[string]string{} // at the bank, by reference
	route := idempotency.Route{Pattern: "/v1/payouts", KeyWindow: 24 * time.Hour, Mode: idempotency.Leased,
		Reconcile: func(_ context.Context, step, key string) (idempotency.StepOutcome, []byte, error) {
			id, there := transfers[step+" "+key]
			if !there {
				return idempotency.StepNoEffect, nil, nil // the call is made again
			}
			return idempotency.StepTookEffect, []byte(id), nil
		}}
	payout := func(w http.ResponseWriter, r *http.Request) {
		id, err := idempotency.Step(r.Context(), "transfer", func(_ context.Context, key string) ([]byte, error) {
			transfers["transfer "+key] = "tr_1"
			return nil, errors.New("the bank's answer was lost")
		})
		if err != nil {
			http.Error(w, "try again", http.StatusBadGateway)
			return
		}
		fmt.Fprintf(w, "paid out: %s", id)
	}
	server := httptest.NewServer(layer.MustHandle(route, http.HandlerFunc(payout)))
	defer server.Close()

	show(server.URL, "payout-5", "")
	// The client comes back after a day, when the bank has forgotten the key.
	_, err = pool.Exec(context.Background(), `update onlyonce.http_steps set first_at = first_at - interval '24 hours'`)
	show(server.URL, "payout-5", "")
	fmt.Println(len(transfers), "transfer", err)
	// Output:
	// 502 released: try again
	// 200 created: paid out: tr_1
	// 1 transfer <nil>
}

// The layer's refusals in the API's own envelope. This one needs no database: the request has no
// key.
func ExampleConfig() {
	pool, err := pgxpool.New(context.Background(), "postgres://shop@127.0.0.1:5432/shop") // connects when it is used
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	cfg := exampleConfig()
	cfg.Problem = func(_ *http.Request, p idempotency.Problem) (contentType string, body []byte) {
		return "application/json", fmt.Appendf(nil, `{"error":{"code":%q,"message":%q,"retryable":%t}}`, p.Code, p.Title, p.Retryable)
	}
	layer, err := idempotency.New(pool, cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	charges := layer.MustHandle(idempotency.Route{Pattern: "/v1/charges", NoCalls: true}, http.NotFoundHandler())
	w := httptest.NewRecorder()
	charges.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/charges", nil))
	fmt.Println(w.Code, w.Header().Get("Content-Type"), w.Body)
	// Output:
	// 400 application/json {"error":{"code":"key-missing","message":"An idempotency key is required","retryable":false}}
}
