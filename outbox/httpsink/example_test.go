package httpsink_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
)

// A sink for one remote. In a program the sink is given to outbox.NewRelay, whose relay calls Send
// for the rows that are due. Here one call is sent directly, to a server in this process.
func Example() {
	remote := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Println(r.Method, r.URL.Path, string(body))
		fmt.Println("Idempotency-Key:", r.Header.Get("Idempotency-Key"))
		fmt.Println("Authorization:", r.Header.Get("Authorization"))
		w.WriteHeader(http.StatusCreated)
	}))
	defer remote.Close()

	payments, err := httpsink.New(httpsink.Config{
		Name:         "payments",
		BaseURL:      remote.URL + "/v1",
		KeyWindow:    24 * time.Hour, // the remote's documentation: "keys may be removed after 24 hours"
		AllowPrivate: true,           // the server of this example is on loopback
		Authorize: httpsink.Bearer(func(context.Context) (string, error) {
			return "token-of-today", nil
		}),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer payments.Close()

	result := payments.Send(context.Background(), &outbox.Attempt{
		Key:    "6f1c0c6e-7a3b-5d0e-9c55-2b8a4a1f9d10",
		Method: http.MethodPost, Target: "/charges", Body: []byte(`{"order":"17","cents":500}`),
	})
	fmt.Println(result.Outcome, result.Reason)
	// Output:
	// POST /v1/charges {"order":"17","cents":500}
	// Idempotency-Key: 6f1c0c6e-7a3b-5d0e-9c55-2b8a4a1f9d10
	// Authorization: Bearer token-of-today
	// delivered status 201
}

// New reports every fault at once, each with its field.
func ExampleNew() {
	_, err := httpsink.New(httpsink.Config{
		Name: "hooks", BaseURL: "http://169.254.169.254/latest", Timeout: time.Hour,
	})
	fmt.Println(strings.ReplaceAll(err.Error(), " refused: ", " refused:\n  "))
	// Output:
	// httpsink: invalid configuration: Config.Timeout: is 1h0m0s: must be from 1ms to 10m0s
	// httpsink: invalid configuration: Config.KeyWindow: must be set: how long the remote remembers a key, or outbox.Forever
	// httpsink: invalid configuration: Config.BaseURL: its host cannot be called: address 169.254.169.254 refused:
	//   a cloud's metadata service, and allowed by neither AllowPrivate nor AllowNetworks
}

// A provider's profile says which header carries the key, in which form, and how long the provider
// remembers it.
func ExampleProfile() {
	for _, p := range []httpsink.Profile{httpsink.Stripe(), httpsink.PayPal(), httpsink.Square()} {
		fmt.Printf("header %q, body member %q, remembered for %v\n", p.Header, p.BodyMember, p.KeyWindow)
	}
	// Output:
	// header "", body member "", remembered for 24h0m0s
	// header "PayPal-Request-Id", body member "", remembered for 6h0m0s
	// header "", body member "idempotency_key", remembered for 0s
}

// Each attempt at a call has the same key and an id of its own.
func ExampleConfig() {
	seen := map[string]bool{}
	remote := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen[r.Header.Get("X-Request-Id")] = true
		fmt.Println(r.Header.Get("Idempotency-Key"))
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer remote.Close()
	payments, err := httpsink.New(httpsink.Config{
		Name: "payments", BaseURL: remote.URL, KeyWindow: 24 * time.Hour,
		RequestIDHeader: "X-Request-Id",
		AllowPrivate:    true, // the server of this example is on loopback
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer payments.Close()
	call := &outbox.Attempt{Key: "6f1c0c6e-7a3b-5d0e-9c55-2b8a4a1f9d10", Method: http.MethodPost, Target: "/charges"}
	for range 2 { // as a relay does
		fmt.Println(payments.Send(context.Background(), call).Outcome)
	}
	fmt.Println(len(seen), "ids")
	// Output:
	// 6f1c0c6e-7a3b-5d0e-9c55-2b8a4a1f9d10
	// retry
	// 6f1c0c6e-7a3b-5d0e-9c55-2b8a4a1f9d10
	// retry
	// 2 ids
}
