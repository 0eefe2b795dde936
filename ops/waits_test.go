package ops_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// T14: commands wait for a batch, and for an attempt at a parked row, for longer than the ten
// seconds that once were enough: as long as a transaction of any owner may last.
func TestT14DecisionsWaitForLongBatches(t *testing.T) {
	if !pgtest.Long("T14 decisions") {
		t.Skip("takes 12 seconds")
	}
	at := ops.CursorName{Scope: "stock", Topic: "orders"}
	by := ops.By{Reason: "why"}
	for name, c := range map[string]struct {
		hold string // what the owner's transaction does
		act  func(ctx context.Context, db ops.DB) error
	}{
		"replay": {
			`
select onlyonce.enter(
  id,
  epoch,
  nonce,
  0,
  '1s',
  '1s',
  '1min'
) from onlyonce.leases where name = 'cursor/stock/orders/0'`,
			func(ctx context.Context, db ops.DB) error {
				_, err := ops.Replay(ctx, db, by, ops.ReplayInput{CursorName: at, From: 3})
				return err
			},
		},
		"class": {
			`
select onlyonce.enter(
  id,
  epoch,
  nonce,
  0,
  '1s',
  '1s',
  '1min'
) from onlyonce.leases where name = 'cursor/stock/orders/0'`,
			func(ctx context.Context, db ops.DB) error {
				_, err := ops.ChangeClass(ctx, db, by, ops.ClassInput{Scope: "stock", Class: "long"})
				return err
			},
		},
		"discard": {`select id from onlyonce.parked for update`,
			func(ctx context.Context, db ops.DB) error {
				_, err := ops.Discard(ctx, db, by, ops.ParkedInput{ParkedFilter: ops.ParkedFilter{ID: 1}})
				return err
			}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.DB(t)
			cursors(t, pool, 1)
			parks(t, pool, 1)
			exec(t, pool, `update onlyonce.leases set epoch = 1, nonce = gen_random_uuid(), longest = '1min'`)
			exec(t, pool, `insert into onlyonce.scopes (scope, topics, first_topic) values ('stock', '{orders}', 'orders')`)
			owner, err := pool.BeginTx(t.Context(), pgx.TxOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = owner.Rollback(context.WithoutCancel(t.Context())) }()
			if _, err := owner.Exec(t.Context(), c.hold); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- c.act(t.Context(), pool) }()
			pgtest.Until(t, pgtest.Patience(time.Minute), "it waits for longer than ten seconds", func() bool {
				return one[bool](t, pool, `select exists (select from pg_locks k join pg_stat_activity a using (pid)
					where a.datname = current_database() and not k.granted and clock_timestamp() - k.waitstart > '10.5s')`)
			})
			if err := owner.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}
