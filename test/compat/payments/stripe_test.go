package payments

import (
	"bytes"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/stripe/stripe-go/v84"

	"github.com/onlyonce/onlyonce/idempotency"
)

// Where a cutter cuts a connection.
const (
	beforeHandler = "before the handler"
	afterCommit   = "after COMMIT, before a byte of the answer"
	midAnswer     = "in the middle of the answer"
)

// cutter cuts the connection of the first requests under each key, and lets the next one through.
// It wraps the layer, because that is how a network failure looks.
type cutter struct {
	next  http.Handler
	where string
	times int

	mu   sync.Mutex
	seen map[string]int // requests by key
}

func (c *cutter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Idempotency-Key")
	c.mu.Lock()
	c.seen[key]++
	cut := key != "" && c.seen[key] <= c.times
	c.mu.Unlock()
	if !cut {
		c.next.ServeHTTP(w, r)
		return
	}
	if c.where != beforeHandler {
		rec := httptest.NewRecorder()
		c.next.ServeHTTP(rec, r)
		if c.where == midAnswer {
			for name, values := range rec.Header() {
				w.Header()[name] = values
			}
			w.WriteHeader(rec.Code)
			_, _ = w.Write(rec.Body.Bytes()[:rec.Body.Len()/2])
			_ = http.NewResponseController(w).Flush()
		}
	}
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // a reset
	}
	_ = conn.Close()
}

func (c *cutter) requests() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.seen {
		n += k
	}
	return n
}

// stripeClient is Stripe's library, which asks again by itself, with another address than Stripe's.
func stripeClient(url string, client *http.Client) *stripe.Client {
	backend := stripe.GetBackendWithConfig(stripe.APIBackend, &stripe.BackendConfig{
		URL:               stripe.String(url),
		MaxNetworkRetries: stripe.Int64(4),
		HTTPClient:        client,
		LeveledLogger:     &stripe.LeveledLogger{Level: stripe.LevelNull},
		EnableTelemetry:   stripe.Bool(false),
	})
	return stripe.NewClient("sk_test_1", stripe.WithBackends(&stripe.Backends{API: backend, Connect: backend, Uploads: backend}))
}

// Stripe's own library, as it is, against this API: it writes forms, makes keys, and asks again by
// itself when a connection breaks. Wherever it breaks there is one charge, one capture, one refund,
// and one call to the provider for each.
func TestStripesLibrary(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"nowhere", beforeHandler, afterCommit, midAnswer} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			var c *cutter
			s := newService(t, func(h http.Handler) http.Handler {
				c = &cutter{next: h, where: where, times: 2, seen: map[string]int{}}
				if where == "nowhere" {
					c.times = 0
				}
				return c
			})
			transport := http.DefaultTransport.(*http.Transport).Clone()
			defer transport.CloseIdleConnections()
			client := stripeClient(s.url, &http.Client{Transport: transport})

			params := &stripe.ChargeCreateParams{Amount: stripe.Int64(2000), Currency: stripe.String("usd"), Capture: stripe.Bool(false),
				Source: &stripe.PaymentSourceSourceParams{Token: stripe.String("tok_visa")}}
			params.AddMetadata("reference", "stripe-charge")
			made, err := client.V1Charges.Create(t.Context(), params)
			if err != nil {
				t.Fatal(err)
			}
			if made.Amount != 2000 || made.Captured || made.Metadata["reference"] != "stripe-charge" {
				t.Errorf("%+v", made)
			}
			taken := &stripe.ChargeCaptureParams{Amount: stripe.Int64(1500)}
			taken.AddExtra("metadata[reference]", "stripe-capture")
			captured, err := client.V1Charges.Capture(t.Context(), made.ID, taken)
			if err != nil {
				t.Fatal(err)
			}
			back := &stripe.RefundCreateParams{Charge: stripe.String(made.ID), Amount: stripe.Int64(700)}
			back.AddMetadata("reference", "stripe-refund")
			returned, err := client.V1Refunds.Create(t.Context(), back)
			if err != nil {
				t.Fatal(err)
			}
			if captured.AmountCaptured != 1500 || returned.Amount != 700 || returned.Charge.ID != made.ID {
				t.Errorf("%+v, %+v", captured, returned)
			}
			shown, err := client.V1Charges.Retrieve(t.Context(), made.ID, nil)
			if err != nil || shown.AmountCaptured != 1500 || shown.AmountRefunded != 700 {
				t.Errorf("%+v, %v", shown, err)
			}
			for _, table := range []string{"charges", "captures", "refunds"} {
				if n := s.rows(table); n != 1 {
					t.Errorf("%d rows in %s", n, table)
				}
			}
			if n := c.requests(); n < 3*(c.times+1) {
				t.Errorf("%d requests: not a connection was cut", n)
			}
			s.delivered()
			keys, changed := s.provider.ByReference()
			good := len(keys) == 3 &&
				keys["stripe-charge"] == 1 &&
				keys["stripe-capture"] == 1 &&
				keys["stripe-refund"] == 1 &&
				changed == 0
			if !good {
				t.Errorf("at the provider: %v, %d changed", keys, changed)
			}
		})
	}
}

// What the application refuses is an error of Stripe's library at once: it does not ask again.
func TestStripesLibraryTakesARefusal(t *testing.T) {
	t.Parallel()
	c := &cutter{seen: map[string]int{}}
	s := newService(t, func(h http.Handler) http.Handler { c.next = h; return c })
	params := &stripe.ChargeCreateParams{
		Amount:   stripe.Int64(2000),
		Currency: stripe.String("usd"),
		Source:   &stripe.PaymentSourceSourceParams{Token: stripe.String("tok_chargeDeclined")},
	}
	params.AddMetadata("reference", "declined")
	params.SetIdempotencyKey("order-17")
	for range 2 {
		_, err := stripeClient(s.url, http.DefaultClient).V1Charges.Create(t.Context(), params)
		var declined *stripe.CardError
		if !errors.As(err, &declined) {
			t.Errorf("a declined card: %v", err)
		}
	}
	if n := s.rows("charges"); n != 0 || c.requests() != 2 {
		t.Errorf("%d charges after %d requests", n, c.requests())
	}
	other := s.ask("POST", "/v1/charges", "order-17", `amount=1`, "Content-Type", "application/x-www-form-urlencoded")
	if other.Status != 422 || other.Outcome != idempotency.Mismatch || bytes.Contains(other.Body, []byte("declined")) {
		t.Errorf("%d %s %s", other.Status, other.Outcome, other.Body)
	}
}
