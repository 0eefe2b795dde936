package outbox_test

import (
	"context"
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

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
)

// A relay process: it sends until it is interrupted, and then lets the calls under way end.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, "postgres://relay@db/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	payments, err := httpsink.New(httpsink.Config{
		Name: "payments", BaseURL: "https://api.example.com/v1",
		KeyWindow: 24 * time.Hour, // "keys may be removed after 24 hours"
		Authorize: func(r *http.Request) error {
			r.Header.Set("Authorization", "Bearer "+os.Getenv("PAYMENTS_TOKEN"))
			return nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	relay, err := outbox.NewRelay(pool, outbox.RelayConfig{Sinks: []outbox.Sink{payments}})
	if err != nil {
		log.Fatal(err)
	}
	if err := relay.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

// A transaction of your own: the order and the call that charges for it commit together.
func ExampleEnqueue() {
	placeOrder := func(ctx context.Context, pool *pgxpool.Pool, id string, cents int) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `insert into orders (id, cents) values ($1, $2)`, id, cents); err != nil {
				return err
			}
			return outbox.Enqueue(ctx, tx, outbox.Call{
				Sink: "payments", Name: "charge", Scope: "checkout", ID: id,
				Target: "/charges", Header: http.Header{"Content-Type": {"application/json"}},
				Body: fmt.Appendf(nil, `{"order":%q,"cents":%d}`, id, cents),
			})
		})
	}
	_ = placeOrder
}

// A consumer's handler: the calls are the message's, and so are their keys. Two calls of one name
// need an ID each, taken from what they are about.
func ExampleEnqueue_handler() {
	handle := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		for _, recipient := range []string{"buyer@example.com", "seller@example.com"} {
			err := outbox.Enqueue(ctx, tx, outbox.Call{Sink: "mail", Name: "order-placed", ID: recipient, Target: "/send", Body: m.Value})
			if err != nil {
				return err
			}
		}
		return nil
	}
	_ = handle
}

// At most 100 calls a second to the remote, by all relays together, at most 5 for one tenant, and
// one at a time for one account. Calls of those two that are over that wait, and hold up nobody
// else's.
func ExampleRate() {
	start := func(ctx context.Context, pool *pgxpool.Pool, payments outbox.Sink) error {
		relay, err := outbox.NewRelay(pool, outbox.RelayConfig{
			Sinks: []outbox.Sink{payments},
			Rates: []outbox.Rate{
				{Sink: "payments", PerSecond: 100},
				{Sink: "payments", Tenant: "acme", PerSecond: 5},
				{Sink: "payments", OrderingKeyPrefix: "account-17:", InFlight: 1},
			},
		})
		if err != nil {
			return err
		}
		return relay.Run(ctx)
	}
	_ = start
}

// What one attempt looks like from the remote's side.
func ExampleSink() {
	remote := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println(r.Method, r.URL, r.Header.Get("Idempotency-Key"))
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer remote.Close()
	sink, err := httpsink.New(httpsink.Config{Name: "payments", BaseURL: remote.URL + "/v1", KeyWindow: outbox.Forever, AllowPrivate: true})
	if err != nil {
		log.Fatal(err)
	}
	defer sink.Close()
	result := sink.Send(context.Background(), &outbox.Attempt{
		Key: "51825619-b4aa-834b-8c96-7435425d5a3b", Method: "POST", Target: "/charges", Body: []byte(`{"cents":100}`),
	})
	fmt.Println(result.Outcome, "-", result.Reason)
	// Output:
	// POST /v1/charges 51825619-b4aa-834b-8c96-7435425d5a3b
	// retry - status 503
}
