// Declined has a provider charge cards, of which it declines some. A declined card is business: the
// order learns of it, the customer's next order is not held up, and nobody is woken. It takes
// $ONLYONCE_POSTGRES_URL, and ends when each order has its answer.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
)

const schema = `
create table if not exists orders (
  id text primary key,
  customer text not null,
  card text not null,
  state text not null default 'placed'
)`

// placeOrder commits an order and the call that charges its card. Calls of one customer arrive in
// the order of their commits.
func placeOrder(ctx context.Context, tx pgx.Tx, id, customer, card string) error {
	if _, err := tx.Exec(ctx, `insert into orders (id, customer, card) values ($1, $2, $3)`, id, customer, card); err != nil {
		return err
	}
	body, err := json.Marshal(map[string]string{"order": id, "card": card})
	if err != nil {
		return err
	}
	return outbox.Enqueue(ctx, tx, outbox.Call{
		Sink: "payments", Name: "charge", Scope: "orders", ID: id, Target: "/charges", Body: body,
		OrderingKey: customer,
		Capture:     true, // chargeAnswered gets the answer
	})
}

func relayTo(pool *pgxpool.Pool, provider string) (*outbox.Relay, error) {
	payments, err := httpsink.New(httpsink.Config{
		Name: "payments", BaseURL: provider, KeyWindow: 24 * time.Hour,
		AllowPrivate: true, // the provider of this example is on this machine
		// 402 is an answer, as 201 is: the card was declined.
		Outcomes: map[int]outbox.AttemptOutcome{http.StatusPaymentRequired: outbox.Delivered},
	})
	if err != nil {
		return nil, err
	}
	return outbox.NewRelay(pool, outbox.RelayConfig{
		Sinks:    []outbox.Sink{payments},
		Complete: chargeAnswered,
		PassOn:   true, // what is refused for another reason waits for a person, and the customer's next call does not
	})
}

// chargeAnswered receives the provider's answer to each charge once. Its writes commit together
// with the end of the call.
func chargeAnswered(ctx context.Context, tx dedupe.GuardedTx, a *outbox.Attempt, answer *outbox.Response) error {
	var charge struct{ Order string }
	if err := json.Unmarshal(a.Body, &charge); err != nil {
		return outbox.Permanent(err)
	}
	state := "paid"
	if answer.Status == http.StatusPaymentRequired {
		state = "declined"
	}
	_, err := tx.Exec(ctx, `update orders set state = $2 where id = $1`, charge.Order, state)
	return err
}

// provider declines cards that say so, and has answers of its own for others.
func provider(w http.ResponseWriter, r *http.Request) {
	var charge struct{ Card string }
	if err := json.NewDecoder(r.Body).Decode(&charge); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	switch charge.Card {
	case "declined":
		w.WriteHeader(http.StatusPaymentRequired)
	case "malformed":
		w.WriteHeader(http.StatusUnprocessableEntity)
	default:
		w.WriteHeader(http.StatusCreated)
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("ONLYONCE_POSTGRES_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	err = pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		_, err := migrations.Apply(ctx, c.Conn())
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := pool.Exec(ctx, schema); err != nil {
		log.Fatal(err)
	}
	remote := httptest.NewServer(http.HandlerFunc(provider))
	defer remote.Close()
	relay, err := relayTo(pool, remote.URL)
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		if err := relay.Run(ctx); err != nil {
			log.Fatal(err)
		}
	}()
	run := fmt.Sprint(time.Now().Unix())
	for n, card := range []string{"4242", "declined", "4242"} {
		id := fmt.Sprintf("order-%s-%d", run, n)
		if err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return placeOrder(ctx, tx, id, "ann", card) }); err != nil {
			log.Fatal(err)
		}
	}
	relay.Wake()
	for left := 1; left > 0 && ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
		err := pool.QueryRow(ctx, `select count(*) from orders where state = 'placed'`).Scan(&left)
		if err != nil {
			log.Fatal(err)
		}
	}
	rows, err := pool.Query(ctx, `select id, card, state from orders where id like 'order-' || $1 || '-%' order by id`, run)
	if err != nil {
		log.Fatal(err)
	}
	var id, card, state string
	_, err = pgx.ForEachRow(rows, []any{&id, &card, &state}, func() error {
		fmt.Println(id, card, state)
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
}
