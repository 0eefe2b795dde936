package idempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/seal"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// docs/guide/http.md shows this code; package test/docs compares them.

func createCharge(w http.ResponseWriter, r *http.Request) {
	var in struct{ Amount int64 }
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		http.Error(w, "not JSON", http.StatusBadRequest) // final: stored too
		return
	}
	var id int64
	tx, err := idempotency.TxOf(r) // commits with the answer, before a byte of it leaves
	if err == nil {
		err = tx.QueryRow(r.Context(), `insert into charges (amount) values ($1) returning id`, in.Amount).Scan(&id)
	}
	if err != nil {
		http.Error(w, "try again", http.StatusInternalServerError) // undone and not stored: the key is free again
		return
	}
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, `{"id":%d}`, id)
}

func charges(ctx context.Context, pool *pgxpool.Pool, mux *http.ServeMux, secret seal.Key) error {
	layer, err := idempotency.New(pool, idempotency.Config{
		// Whose key it is: a function of yours, which asks your authentication.
		Scope: customerOf,
		// Secrets by which requests are hashed, to tell one from another.
		FingerprintKeys: seal.Keys{Current: 1, ByID: map[uint32]seal.Key{1: secret}},
	})
	if err != nil {
		return err
	}
	mux.Handle("POST /v1/charges",
		layer.MustHandle(idempotency.Route{Pattern: "/v1/charges", NoCalls: true}, http.HandlerFunc(createCharge)))
	return layer.Run(ctx) // purges answers whose time has passed
}

// customerKey is where the authentication before the layer puts the customer that it has verified.
type customerKey struct{}

func customerOf(r *http.Request) (idempotency.Scope, error) {
	customer, known := r.Context().Value(customerKey{}).(string)
	if !known {
		return idempotency.Scope{}, errors.New("nobody has verified the customer")
	}
	return idempotency.Scope{Tenant: customer}, nil
}

// It does what the guide says: one charge for each customer's key, and the first answer for each
// retry.
func TestReadmeRequests(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	if _, err := pool.Exec(
		t.Context(),
		`create table charges (id bigint generated always as identity primary key, amount bigint not null)`,
	); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- charges(ctx, pool, mux, seal.Key{1}) }()
	ask := func(customer, body string) string {
		req := httptest.NewRequest(http.MethodPost, "/v1/charges", strings.NewReader(body))
		req.Header.Set("Idempotency-Key", "order-17")
		req = req.WithContext(context.WithValue(req.Context(), customerKey{}, customer))
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, req)
		if w.Code >= 400 {
			return fmt.Sprint(w.Code, " ", w.Header().Get("Idempotency-Status"))
		}
		return fmt.Sprint(w.Code, " ", w.Header().Get("Idempotency-Status"), " ", w.Body)
	}
	until(t, "the route is there", func() bool { return ask("", "no JSON") != "404 " })
	for _, c := range []struct{ customer, body, want string }{
		{"a", `{"Amount":500}`, `201 created {"id":1}`},
		{"a", `{"Amount":500}`, `201 replayed {"id":1}`},
		{"a", `{"Amount":900}`, `422 mismatch`},
		{"b", `{"Amount":500}`, `201 created {"id":2}`},
		{"b", `{"Amount":500}`, `201 replayed {"id":2}`},
		{"c", `{"Amount":500`, `400 created`},
		{"c", `{"Amount":500`, `400 replayed`},
	} {
		if got := ask(c.customer, c.body); got != c.want {
			t.Errorf("%s asks for %s: %s, want %s", c.customer, c.body, got, c.want)
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
