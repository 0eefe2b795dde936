package idempotency_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/seal"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// A handler whose effects are in the database: what it writes, the call that it enqueues and the
// answer under the request's key commit together. The client that asks again, whether it got the
// answer or not, gets the same bytes.
func ExampleLayer() {
	pool, end := exampleDatabase(`create table charges (id bigint generated always as identity primary key, amount bigint not null)`)
	defer end()

	layer, err := idempotency.New(pool, exampleConfig())
	if err != nil {
		fmt.Println(err)
		return
	}
	charge := func(w http.ResponseWriter, r *http.Request) {
		var in struct{ Amount int64 }
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, "not JSON", http.StatusBadRequest) // final: answered again under this key
			return
		}
		tx, err := idempotency.TxOf(r)
		if err != nil {
			http.Error(w, "internal", http.StatusInternalServerError) // not stored: the key is free again
			return
		}
		var id int64
		err = tx.QueryRow(r.Context(), `insert into charges (amount) values ($1) returning id`, in.Amount).Scan(&id)
		if err == nil { // its key derives from the request's: no need to make one
			err = outbox.Enqueue(r.Context(), tx, outbox.Call{
				Sink:   "bank",
				Name:   "charge",
				Target: "/charges",
				Body:   fmt.Appendf(nil, `{"amount":%d}`, in.Amount),
			})
		}
		if err != nil {
			http.Error(w, "internal", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Location", fmt.Sprintf("/v1/charges/%d", id))
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "charge %d", id)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /v1/charges",
		layer.MustHandle(idempotency.Route{Pattern: "/v1/charges", KeyWindow: 24 * time.Hour}, http.HandlerFunc(charge)))
	server := httptest.NewServer(mux)
	defer server.Close()

	show(server.URL+"/v1/charges", "order-17", `{"amount":500}`)
	show(server.URL+"/v1/charges", "order-17", `{"amount":500}`) // a retry
	show(server.URL+"/v1/charges", "order-17", `{"amount":900}`) // a mistake
	var charges, calls int
	err = pool.QueryRow(context.Background(), `select (select count(*) from charges), (select count(*) from onlyonce.outbox_log)`).Scan(
		&charges,
		&calls,
	)
	fmt.Println(charges, "charge,", calls, "call to the bank", err)
	// Output:
	// 201 created: charge 1
	// 201 replayed: charge 1
	// 422 mismatch: The idempotency key belongs to another request
	// 1 charge, 1 call to the bank <nil>
}

// A handler calls a bank half-way, and answers with the bank's result. It fails after the call,
// here on purpose. The retry does not call the bank again.
func ExampleStep() {
	pool, end := exampleDatabase(`create table payouts (bank_reference text not null)`)
	defer end()

	layer, err := idempotency.New(pool, exampleConfig())
	if err != nil {
		fmt.Println(err)
		return
	}
	runs := 0
	calls := 0
	payout := func(w http.ResponseWriter, r *http.Request) {
		runs++
		reference, err := idempotency.Step(r.Context(), "payout", func(ctx context.Context, key string) ([]byte, error) {
			calls++ // the bank is called with key as its Idempotency-Key
			return []byte("bank-4711"), nil
		})
		if err != nil || runs == 1 {
			http.Error(w, "the bank was asked, and something went wrong", http.StatusBadGateway) // not stored; the step is
			return
		}
		tx, err := idempotency.TxOf(r) // behind the last step: no call is made while a transaction is open
		if err != nil {
			http.Error(w, "internal", http.StatusInternalServerError)
			return
		}
		tx.Queue(`insert into payouts values ($1)`, string(reference))
		fmt.Fprintf(w, "paid out, %s", reference)
	}
	server := httptest.NewServer(layer.MustHandle(
		idempotency.Route{Pattern: "/v1/payouts", KeyWindow: 24 * time.Hour, Mode: idempotency.Leased},
		http.HandlerFunc(payout),
	))
	defer server.Close()

	show(server.URL+"/v1/payouts", "payout-3", `{"amount":500}`)
	show(server.URL+"/v1/payouts", "payout-3", `{"amount":500}`)
	show(server.URL+"/v1/payouts", "payout-3", `{"amount":500}`)
	fmt.Println(runs, "runs,", calls, "call to the bank")
	// Output:
	// 502 released: the bank was asked, and something went wrong
	// 200 created: paid out, bank-4711
	// 200 replayed: paid out, bank-4711
	// 2 runs, 1 call to the bank
}

// Duplicates that come while the first one is under way wait for its answer instead of being told
// to come back. They hold no connection of the pool meanwhile.
func ExampleRoute_wait() {
	pool, end := exampleDatabase(`create table charges (amount bigint not null)`)
	defer end()

	layer, err := idempotency.New(pool, exampleConfig())
	if err != nil {
		fmt.Println(err)
		return
	}
	entered := make(chan struct{})
	proceed := make(chan struct{})
	charge := func(w http.ResponseWriter, r *http.Request) {
		close(entered) // a second run would panic
		<-proceed
		tx, err := idempotency.TxOf(r)
		if err != nil {
			http.Error(w, "internal", http.StatusInternalServerError)
			return
		}
		tx.Queue(`insert into charges values (500)`)
		fmt.Fprint(w, "charged")
	}
	server := httptest.NewServer(layer.MustHandle(
		idempotency.Route{Pattern: "/v1/charges", KeyWindow: 24 * time.Hour, Wait: 10 * time.Second},
		http.HandlerFunc(charge),
	))
	defer server.Close()

	var all sync.WaitGroup
	all.Go(func() { show(server.URL, "order-18", "") })
	<-entered
	for range 2 {
		all.Go(func() { show(server.URL, "order-18", "") })
	}
	close(proceed)
	all.Wait()
	// Unordered output:
	// 200 created: charged
	// 200 replayed: charged
	// 200 replayed: charged
}

// exampleConfig is for a server without customers, whose secret is not one.
func exampleConfig() idempotency.Config {
	return idempotency.Config{
		Scope:           idempotency.GlobalScope(), // in earnest: the customer, from your authentication
		FingerprintKeys: seal.Keys{Current: 1, ByID: map[uint32]seal.Key{1: {31: 1}}},
	}
}

// show posts a body under a key, and prints the answer: of a problem its title.
func show(url, key, body string) {
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		fmt.Println(err)
		return
	}
	req.Header.Set("Idempotency-Key", key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		fmt.Println(err)
		return
	}
	var problem struct{ Title string }
	text := strings.TrimSpace(string(answer))
	if json.Unmarshal(answer, &problem) == nil && problem.Title != "" {
		text = problem.Title
	}
	fmt.Printf("%d %s: %s\n", resp.StatusCode, resp.Header.Get("Idempotency-Status"), text)
}

// exampleDatabase makes a database of an example's own; end removes it.
func exampleDatabase(sql string) (pool *pgxpool.Pool, end func()) {
	s := &stage{}
	pool = pgtest.DB(s)
	if _, err := pool.Exec(context.Background(), sql); err != nil {
		panic(err)
	}
	return pool, func() {
		http.DefaultClient.CloseIdleConnections()
		for i := range s.ends {
			s.ends[len(s.ends)-1-i]()
		}
	}
}

// stage is the testing.TB that pgtest needs; an example has none.
type stage struct {
	testing.TB
	ends []func()
}

func (s *stage) Cleanup(f func())          { s.ends = append(s.ends, f) }
func (*stage) Helper()                     {}
func (*stage) Name() string                { return "example" }
func (*stage) Failed() bool                { return false }
func (*stage) Logf(string, ...any)         {}
func (*stage) Fatalf(f string, a ...any)   { panic(fmt.Sprintf(f, a...)) }
func (s *stage) Errorf(f string, a ...any) { s.Fatalf(f, a...) }
func (s *stage) Fatal(a ...any)            { panic(fmt.Sprint(a...)) }
