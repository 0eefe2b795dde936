package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// A declined card ends its own order, and nothing else: the customer's next order is charged, and
// nothing waits for a person. A call that is refused for another reason waits, and holds up nobody.
func TestDeclinedIsBusiness(t *testing.T) {
	pool := pgtest.DB(t)
	pgtest.Exec(t, pool, schema)
	remote := httptest.NewServer(http.HandlerFunc(provider))
	defer remote.Close()
	relay, err := relayTo(pool, remote.URL)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	place := func(id, card string) {
		t.Helper()
		if err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return placeOrder(ctx, tx, id, "ann", card) }); err != nil {
			t.Fatal(err)
		}
	}
	state := func(id string) string {
		return pgtest.One[string](t, pool, `select state from orders where id = $1`, id)
	}
	becomes := func(id, want string) {
		t.Helper()
		pgtest.Until(t, pgtest.Patience(time.Minute), fmt.Sprintf("%s is %s", id, want), func() bool { return state(id) == want })
	}
	place("1", "4242")
	place("2", "declined")
	place("3", "4242")
	becomes("1", "paid")
	becomes("2", "declined")
	becomes("3", "paid")
	needs := func() []ops.Need {
		report, err := ops.Status(ctx, pool, ops.StatusQuestion{})
		if err != nil {
			t.Fatal(err)
		}
		return report.Needs
	}
	if n := needs(); len(n) > 0 {
		t.Errorf("somebody is woken for a declined card: %v", n)
	}
	place("4", "malformed")
	place("5", "4242")
	becomes("5", "paid")
	if got := state("4"); got != "placed" {
		t.Errorf("order 4 is %s", got)
	}
	if n := pgtest.One[int](t, pool, `select count(*) from onlyonce.parked where state = 'waiting' and reason = 'rejected'`); n != 1 {
		t.Errorf("%d calls wait for a decision, want that of order 4", n)
	}
}
