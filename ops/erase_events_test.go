package ops_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/eventsource"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// Only events that every consumer of the stream has handled are erased.
func TestEraseEvents(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	if _, err := eventsource.MakeStream(t.Context(), pool, "hooks", 1); err != nil {
		t.Fatal(err)
	}
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return eventsource.Append(t.Context(), tx, eventsource.Event{
			Topic: "hooks",
			ID:    "evt_1",
			Body:  []byte("private"),
			Key:   []byte("cus_1"),
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	in := ops.EraseEventsInput{Topic: "hooks", Key: "cus_1"}
	if _, err := ops.EraseEvents(t.Context(), pool, ops.By{Reason: "GDPR-4"}, in); !errors.Is(err, ops.ErrRefused) {
		t.Errorf("an event that no consumer has handled: %v", err)
	}
	exec(t, pool, `with l as (insert into onlyonce.leases (name) values ('cursor/stock/hooks/0') returning id)
  insert into onlyonce.cursors (
    id,
    scope,
    topic,
    partition,
    group_id,
    cluster_id,
    start_offset,
    run_start,
    start_policy
  )
  select id,
         'stock',
         'hooks',
         0,
         'g1',
         'postgres',
         1,
         1,
         'earliest'
    from l`)
	// A copy of the body under another id, as a webhook's receiver sets it aside, and another
	// event.
	exec(t, pool, `insert into onlyonce.parked (
  kind,
  state,
  reason,
  scope,
  topic,
  event_id,
  body
)
  select 'event',
         'waiting',
         'same-body',
         'webhook.hooks',
         'hooks',
         'evt_' || n,
         convert_to(case n when 2 then 'private' else 'other' end, 'UTF8')
    from generate_series(2, 3) n`)
	if _, err := ops.EraseEvents(t.Context(), pool, ops.By{Reason: "GDPR-4"}, in); !errors.Is(err, ops.ErrRefused) {
		t.Errorf("a copy that waits: %v", err)
	}
	exec(t, pool, `update onlyonce.parked set state = 'discarded', settled_at = now()`)
	seen, err := ops.EraseEvents(t.Context(), pool, ops.By{DryRun: true}, in)
	good := err == nil &&
		len(seen.Rows) == 2 &&
		*seen.Rows[0].Event == "evt_1" &&
		seen.Rows[0].Bytes == 7 &&
		*seen.Rows[1].Event == "evt_2"
	if !good {
		t.Fatalf("%+v, %v", seen, err)
	}
	in.Shown = seen
	if _, err := ops.EraseEvents(t.Context(), pool, ops.By{Reason: "GDPR-4"}, in); err != nil {
		t.Fatal(err)
	}
	if !one[bool](t, pool, `select body is null and erased_at is not null and id = 'evt_1' from onlyonce.event_log`) {
		t.Error("the body is there, or the row is not")
	}
	if kept := one[string](t, pool, `select string_agg(event_id, ' ') from onlyonce.parked where body is not null`); kept != "evt_3" {
		t.Errorf("parked bodies that are kept: %q", kept)
	}
	in.Shown = nil
	if _, err := ops.EraseEvents(t.Context(), pool, ops.By{Reason: "again"}, in); !errors.Is(err, ops.ErrNothing) {
		t.Errorf("erased already: %v", err)
	}
	in.Key = "cus_2"
	if _, err := ops.EraseEvents(t.Context(), pool, ops.By{Reason: "GDPR-4"}, in); !errors.Is(err, ops.ErrNotFound) {
		t.Errorf("no such event: %v", err)
	}
}
