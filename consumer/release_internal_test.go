package consumer

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// F9: a release that waits for a take-over does not mark the cursor of the new owner.
func TestF9LateReleaseLeavesTheNextOwnersCursor(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	ctx := t.Context()
	old := pgtype.UUID{Bytes: [16]byte{7}, Valid: true}
	var id int64
	err := pool.QueryRow(
		ctx,
		`
with l as (insert into onlyonce.leases (name, epoch, nonce) values ('cursor/r/orders/0', 7, $1) returning id)
insert into onlyonce.cursors (
  id,
  scope,
  topic,
  partition,
  start_offset,
  run_start,
  start_policy
)
  select id,
         'r',
         'orders',
         0,
         0,
         0,
         'earliest'
    from l returning id`,
		old,
	).Scan(&id)
	if err != nil {
		t.Fatal(err)
	}
	takeOver, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = takeOver.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := takeOver.Exec(ctx, `update onlyonce.leases set epoch = 8, nonce = gen_random_uuid() where id = $1`, id); err != nil {
		t.Fatal(err)
	}
	if _, err := takeOver.Exec(ctx, `update onlyonce.cursors set released_at = null where id = $1`, id); err != nil {
		t.Fatal(err)
	}
	released := make(chan error, 1)
	go func() {
		_, err := pool.Exec(ctx, releaseCursorSQL, id, 7, old)
		released <- err
	}()
	pgtest.Until(t, pgtest.Patience(time.Minute), "the release to wait", func() bool {
		var n int
		err := pool.QueryRow(
			ctx,
			`select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()`,
		).Scan(&n)
		return err == nil && n == 1
	})
	if err := takeOver.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-released; err != nil {
		t.Fatal(err)
	}
	var clean bool
	if err := pool.QueryRow(ctx, `select released_at is not null from onlyonce.cursors where id = $1`, id).Scan(&clean); err != nil ||
		clean {
		t.Errorf("the next owner's cursor is marked as released in order: %v, %v", clean, err)
	}
}
