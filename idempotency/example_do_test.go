package idempotency_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/idempotency"
)

// A job that is started twice, for example by a scheduler that got no answer, pays once.
func ExampleDo() {
	ctx := context.Background()
	pool, done := exampleDatabase(`create table payouts (id bigint generated always as identity primary key, account text not null,
		cents bigint not null)`)
	defer done()
	layer, err := idempotency.New(pool, exampleConfig())
	if err != nil {
		panic(err)
	}
	payouts, err := idempotency.NewDoer(layer, idempotency.DoerConfig{Scope: "payout", NoCalls: true})
	if err != nil {
		panic(err)
	}

	type payout struct {
		Account string
		Cents   int64
	}
	pay := func(ctx context.Context, id string, p payout) {
		number, mark, err := idempotency.Do(
			ctx,
			payouts,
			idempotency.Scope{},
			id,
			p,
			func(ctx context.Context, tx consumer.Tx) (int64, error) {
				if p.Cents > 100_00 {
					return 0, idempotency.Permanent("over-limit", "a payout has at most 100 EUR")
				}
				var number int64
				err := tx.QueryRow(ctx, `insert into payouts (account, cents) values ($1, $2) returning id`,
					p.Account, p.Cents).Scan(&number)
				return number, err
			},
		)
		switch {
		case errors.Is(err, idempotency.ErrKeyReused):
			fmt.Println(mark, "another payout has this id")
		case err != nil:
			fmt.Println(mark, err)
		default:
			fmt.Println(mark, "payout", number)
		}
	}
	pay(ctx, "2026-11-acme", payout{"acme", 50_00})
	pay(ctx, "2026-11-acme", payout{"acme", 50_00})
	pay(ctx, "2026-11-acme", payout{"acme", 60_00})
	pay(ctx, "2026-11-initech", payout{"initech", 500_00})
	pay(ctx, "2026-11-initech", payout{"initech", 500_00})
	// Output:
	// created payout 1
	// replayed payout 1
	// mismatch another payout has this id
	// created over-limit: a payout has at most 100 EUR
	// replayed over-limit: a payout has at most 100 EUR
}
