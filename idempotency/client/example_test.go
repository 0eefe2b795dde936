package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/idempotency/client"
)

// payments is a server that charges once for each key, and whose first answer is lost on the way.
func payments() *httptest.Server {
	var mu sync.Mutex
	answers := map[string]string{}
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		key := r.Header.Get("Idempotency-Key")
		if answer, known := answers[key]; known {
			_, _ = io.WriteString(w, answer+", told again")
			return
		}
		answers[key] = fmt.Sprintf("charge %d", len(answers)+1)
		panic(http.ErrAbortHandler) // the connection breaks off
	}))
}

func Example() {
	server := payments()
	defer server.Close()

	transport, err := client.NewTransport(client.Config{MaxWait: 10 * time.Millisecond})
	if err != nil {
		fmt.Println(err)
		return
	}
	caller := &http.Client{Transport: transport}
	defer caller.CloseIdleConnections()

	key, err := client.Derive(client.Intent{Name: "checkout/charge", Version: 1, Parts: []string{"order-17"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := client.WithKey(context.Background(), key)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader(`{"amount":500}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	resp, err := caller.Do(req)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	fmt.Println(string(answer), err)
	// Output: charge 1, told again <nil>
}

// What to do when the outcome is open: keep the key, and ask again under it later.
func ExampleTransportError() {
	server := payments()
	defer server.Close()

	transport, err := client.NewTransport(client.Config{MaxAttempts: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	caller := &http.Client{Transport: transport}
	defer caller.CloseIdleConnections()

	ask := func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader(`{"amount":500}`))
		if err != nil {
			return err
		}
		resp, err := caller.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		answer, err := io.ReadAll(resp.Body)
		fmt.Println(string(answer))
		return err
	}
	err = ask(context.Background())
	var open *client.TransportError
	if errors.As(err, &open) {
		fmt.Println("open after", open.Attempts)
		err = ask(client.WithKey(context.Background(), open.Key))
	}
	fmt.Println(err)
	// Output:
	// open after 1
	// charge 1, told again
	// <nil>
}

func ExampleDerive() {
	charge := client.Intent{Name: "checkout/charge", Version: 1, Parts: []string{"order-17"}}
	key, err := client.Derive(charge)
	fmt.Println(key, err)

	charge.Version = 2 // the card was declined, and the customer tries another one
	key, err = client.Derive(charge)
	fmt.Println(key, err)
	// Output:
	// 6e4845a4-1d8d-8163-b041-25b94aa77792 <nil>
	// 641f9ce4-ce9c-831b-941d-54c2be718b47 <nil>
}

// A store for keys that are random: here in memory, in earnest a table beside the intents.
func ExampleStoredKey() {
	var store client.KeyStore = &table{}
	first, err := client.StoredKey(context.Background(), store, "form 17")
	if err != nil {
		fmt.Println(err)
		return
	}
	again, err := client.StoredKey(context.Background(), store, "form 17") // after a restart
	fmt.Println(first == again, err)
	// ... the answer has been stored
	fmt.Println(store.Forget(context.Background(), "form 17"))
	// Output:
	// true <nil>
	// <nil>
}

// Providers that take keys without quotes, under another name.
func ExampleConfig() {
	_, err := client.NewTransport(client.Config{
		Header: "PayPal-Request-Id",
		Form:   client.FormBare,
		Hooks: client.Hooks{
			AttemptEnd: func(_ context.Context, e client.AttemptEnd) {
				fmt.Println(e.Attempt, e.Status, e.Err, e.Again)
			},
		},
	})
	fmt.Println(err)
	// Output: <nil>
}
