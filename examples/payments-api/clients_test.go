package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/idempotency/client"
)

// Go's own client, which silently sends a request again that carries a key and whose kept
// connection has died, and package idempotency's, against connections that break at every place, in
// both modes: one effect, one call to the provider, and the answer in the end.
func TestGoClients(t *testing.T) {
	t.Parallel()
	for _, where := range []string{beforeHandler, afterCommit, midAnswer} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			c := &cutter{where: where, times: 2, seen: map[string]int{}}
			s := newService(t, func(h http.Handler) http.Handler { c.next = h; return c })
			base := http.DefaultTransport.(*http.Transport).Clone()
			t.Cleanup(base.CloseIdleConnections)
			asking, err := client.NewTransport(client.Config{Base: base, RetryMin: 5 * time.Millisecond, RetryMax: 50 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			clients := map[string]http.RoundTripper{"net/http": base, "Transport": asking}
			for name, caller := range clients {
				for path, body := range map[string]string{
					"/v1/charges": `{"amount":500,"currency":"eur","source":"tok_visa","metadata":{"reference":"%s charge"}}`,
					"/v1/payouts": `{"amount":500,"destination":"ba_1","metadata":{"reference":"%s payout"}}`,
				} {
					answer := until(t, caller, s.url+path, name+path, fmt.Sprintf(body, name))
					if again := until(t, base, s.url+path, name+path, fmt.Sprintf(body, name)); again != answer {
						t.Errorf("%s, %s: first %s, then %s", name, path, answer, again)
					}
				}
			}
			if charges, payouts := s.rows("charges"), s.rows("payouts"); charges != len(clients) || payouts != len(clients) {
				t.Errorf("%d charges, %d payouts", charges, payouts)
			}
			s.delivered()
			keys, changed := s.provider.byReference()
			for reference, n := range keys {
				if n != 1 {
					t.Errorf("%s was paid under %d keys", reference, n)
				}
			}
			if len(keys) != 2*len(clients) || changed != 0 {
				t.Errorf("at the provider: %v, %d changed", keys, changed)
			}
		})
	}
}

// until asks under one key until an answer is there, whole, and returns it.
func until(t *testing.T, transport http.RoundTripper, url, key, body string) string {
	t.Helper()
	caller := http.Client{Transport: transport, Timeout: 30 * time.Second}
	for range 50 {
		req, err := http.NewRequestWithContext(client.WithKey(context.Background(), key), http.MethodPost, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer sk_test_1")
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", `"`+key+`"`)
		resp, err := caller.Do(req)
		if err != nil {
			continue
		}
		answer, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err == nil && resp.StatusCode == http.StatusCreated {
			return string(answer)
		}
	}
	t.Fatalf("%s: no answer", key)
	return ""
}
