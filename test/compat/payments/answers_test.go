package payments

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// A payout's answer is not stored: copies get it made again, byte for byte, as long as there is the
// row. A card whose issuer is away is refused for the moment, and charged under the same key in the
// end.
func TestAnswersThatAHandlerDecidesAbout(t *testing.T) {
	t.Parallel()
	s := newService(t, nil)
	const body = `{"amount":900,"destination":"ba_1","metadata":{"reference":"p"}}`
	first := s.ask("POST", "/v1/payouts", "k1", body)
	for first.Status == 502 || first.Status == 409 { // the provider fails now and then; a slow database is released late
		first = s.ask("POST", "/v1/payouts", "k1", body)
	}
	copied := s.ask("POST", "/v1/payouts", "k1", body)
	good := first.Outcome == idempotency.Created &&
		copied.Outcome == idempotency.Replayed &&
		first.Status == copied.Status &&
		bytes.Equal(first.Body, copied.Body)
	if !good {
		t.Errorf("%d %s, then %d %s", first.Status, first.Body, copied.Status, copied.Body)
	}
	if _, err := s.pool.Exec(t.Context(), `delete from onlyonce_payments.payouts`); err != nil {
		t.Fatal(err)
	}
	if gone := s.ask("POST", "/v1/payouts", "k1", body); gone.Status != 410 {
		t.Errorf("without the row: %d %s", gone.Status, gone.Body)
	}

	for n := range 100 { // keys, until the issuer was away for one
		away, key := 0, fmt.Sprint("unsteady-", n)
		got := s.ask("POST", "/v1/charges", key, `{"amount":500,"currency":"eur","source":"tok_issuerUnsteady"}`)
		for ; got.Status == 402; away++ {
			if got.Outcome != idempotency.Released || got.Header.Get("Retry-After") != "1" {
				t.Fatalf("%s: %s, Retry-After %q", key, got.Outcome, got.Header.Get("Retry-After"))
			}
			got = s.ask("POST", "/v1/charges", key, `{"amount":500,"currency":"eur","source":"tok_issuerUnsteady"}`)
		}
		if got.Status != 201 || got.Outcome != idempotency.Created || s.rows("charges") != n+1 {
			t.Fatalf("%s: %d %s, %d charges", key, got.Status, got.Outcome, s.rows("charges"))
		}
		if away > 0 {
			return
		}
	}
	t.Error("the issuer was never away")
}

// A settlement goes on after its answer. Copies of the request get its present state, with the same
// URL, and its result in the end.
func TestSettlement(t *testing.T) {
	t.Parallel()
	s := newService(t, nil)
	const body = `{"amount":900,"metadata":{"reference":"s"}}`
	first := s.ask("POST", "/v1/settlements", "k1", body)
	if first.Status != 202 || first.Outcome != idempotency.Created {
		t.Fatalf("%d %s", first.Status, first.Body)
	}
	pgtest.Until(t, pgtest.Patience(10*time.Second), "the result", func() bool {
		copied := s.ask("POST", "/v1/settlements", "k1", body)
		if copied.Outcome != idempotency.Replayed || copied.Header.Get("Location") != first.Header.Get("Location") {
			t.Fatalf("%d %s", copied.Status, copied.Body)
		}
		return copied.Status == 200 && bytes.Contains(copied.Body, []byte(`"state":"succeeded"`))
	})
	s.delivered()
	if keys, _ := s.provider.ByReference(); keys["s"] != 1 || s.rows("settlements") != 1 {
		t.Errorf("paid under %d keys, %d rows", keys["s"], s.rows("settlements"))
	}
}
