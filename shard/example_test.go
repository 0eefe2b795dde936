package shard_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/seal"
	"github.com/onlyonce/onlyonce/shard"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/webhook"
)

// serve routes requests and webhooks to two databases.
func serve(poolA, poolB *pgxpool.Pool, cfg idempotency.Config, hooks webhook.Config) (http.Handler, error) {
	shards, err := shard.New(shard.Config{
		Pools: map[string]*pgxpool.Pool{"a": poolA, "b": poolB},
		OfPlace: func(place string) string {
			if place < "m" {
				return "a"
			}
			return "b"
		},
	})
	if err != nil {
		return nil, err
	}
	layer, err := idempotency.NewSharded(shards, cfg) // a request's place is Scope.Tenant
	if err != nil {
		return nil, err
	}
	endpoint, err := webhook.NewSharded(shards, hooks) // an event's place is its tenant, or the endpoint's name
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("POST /charges", layer.MustHandle(idempotency.Route{Pattern: "/charges", NoCalls: true}, http.HandlerFunc(charge)))
	mux.Handle("POST /hooks/stripe", endpoint)
	return mux, nil
}

func charge(w http.ResponseWriter, r *http.Request) {
	if _, err := idempotency.TxOf(r); err != nil { // in the database of the request's tenant
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusCreated)
}

// apply is a loop's handling of one message.
func apply(ctx context.Context, shards *shard.Set, tenant, id string) error {
	db, err := shards.Find(ctx, tenant)
	if err != nil {
		return err
	}
	key := dedupe.Key{Tenant: tenant, Scope: "orders", ID: id, Fingerprint: dedupe.NoFingerprint}
	_, err = dedupe.Do(ctx, db.Pool, key, func(ctx context.Context, tx dedupe.GuardedTx) error {
		if err := shard.Enter(ctx, tx, tenant); err != nil {
			return err
		}
		return book(ctx, tx, id)
	})
	return err
}

func book(ctx context.Context, tx dedupe.GuardedTx, id string) error {
	_, err := tx.Exec(ctx, `insert into bookings (id) values ($1)`, id)
	return err
}

// A tenant moves from one database to another. A loop whose function still names the old one is
// refused, and changes nothing.
func Example() {
	ctx := context.Background()
	a, doneA := exampleDatabase(ctx)
	defer doneA()
	b, doneB := exampleDatabase(ctx)
	defer doneB()
	pools := map[string]*pgxpool.Pool{"a": a, "b": b}
	old, err := shard.New(shard.Config{Pools: pools, OfPlace: func(string) string { return "a" }})
	if err != nil {
		panic(err)
	}
	fmt.Println("in a:", apply(ctx, old, "acme", "order-1"))

	by := ops.By{Actor: "ann", Reason: "OPS-40"} // onlyonce place leave, onlyonce place adopt
	if _, err := ops.LeavePlace(ctx, a, by, ops.LeavePlaceInput{Place: "acme", To: "b"}); err != nil {
		panic(err)
	}
	from := &ops.Origin{DB: a, Name: "a", As: "b", StandardKeys: true}
	if _, err := ops.AdoptPlace(ctx, b, by, ops.AdoptPlaceInput{Place: "acme", From: from}); err != nil {
		panic(err)
	}
	fmt.Println("refused in a:", errors.Is(apply(ctx, old, "acme", "order-2"), shard.ErrElsewhere))

	moved, err := shard.New(shard.Config{Pools: pools, OfPlace: func(string) string { return "b" }})
	if err != nil {
		panic(err)
	}
	for _, id := range []string{"order-1", "order-2"} { // order-1 is a copy, and is not booked again
		fmt.Println("in b:", apply(ctx, moved, "acme", id))
	}
	var booked int
	if err := b.QueryRow(ctx, `select count(*) from bookings`).Scan(&booked); err != nil {
		panic(err)
	}
	fmt.Println("booked in b:", booked)
	// Output:
	// in a: <nil>
	// refused in a: true
	// in b: <nil>
	// in b: <nil>
	// booked in b: 1
}

// exampleDatabase returns a database with a table of bookings.
func exampleDatabase(ctx context.Context) (pool *pgxpool.Pool, end func()) {
	s := &stage{}
	pool = pgtest.DB(s)
	if _, err := pool.Exec(ctx, `create table bookings (id text not null)`); err != nil {
		panic(err)
	}
	return pool, func() {
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
func (*stage) Fatal(a ...any)              { panic(fmt.Sprint(a...)) }

// The functions of the guide make what they say.
func TestServe(t *testing.T) {
	t.Parallel()
	cfg := idempotency.Config{Scope: idempotency.GlobalScope(), FingerprintKeys: seal.Keys{Current: 1, ByID: map[uint32]seal.Key{1: {1}}}}
	if _, err := serve(pgtest.DB(t), pgtest.DB(t), cfg, webhook.Config{
		Name:     "stripe",
		Provider: webhook.Stripe{},
		Secrets:  []string{"whsec_not_a_secret_of_anybody"},
	}); err != nil {
		t.Error(err)
	}
}
