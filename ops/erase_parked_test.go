package ops_test

import (
	"errors"
	"testing"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// Settled rows of each kind are erased by id, by key and by ordering key. What makes copies
// duplicates stays, and so does everything of other rows.
func TestEraseParked(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	const held = `
select coalesce(string_agg(reason, ' ' order by reason), '')
  from onlyonce.parked where coalesce(octet_length(body), 0) > 0 and error <> ''`
	put := func(name, kind, recordKey string, order [16]byte, key string) {
		t.Helper()
		exec(
			t,
			pool,
			`insert into onlyonce.parked (
  kind,
  state,
  settled_at,
  reason,
  error,
  scope,
  tenant,
  topic,
  event_id,
  sink,
  key,
  record_key,
  order_key,
  header_names,
  header_values,
  body,
  response_body
)
   values (
     $1,
     'resolved',
     now(),
     $2,
     'x',
     'stock',
     'acme',
     case when $1 <> 'call' then 'orders' end,
     case when $1 = 'event' then $2 end,
     case when $1 = 'call' then 'mail' end,
     $3::uuid,
     nullif($4, '')::bytea,
     $5::uuid,
     array['h'::bytea],
     array['v'::bytea],
     'private',
     case when $1 = 'call' then 'private'::bytea end
   )`,
			kind,
			name,
			key,
			recordKey,
			uuid.UUID(order).String(),
		)
	}
	none := [16]byte{}
	keys := map[string]string{}
	for _, r := range []struct {
		name, kind, recordKey string
		order                 [16]byte
	}{
		{"a-message", "message", "cus_1", none},
		{"b-by-order", "message", "other", parked.MessageOrder("acme", "stock", "orders", "cus_1")},
		{"c-event", "event", "cus_1", none},
		{"d-call", "call", "", parked.CallOrder("mail", "acme", "stock", "cus_1")},
		{"e-other", "message", "cus_2", parked.MessageOrder("acme", "stock", "orders", "cus_2")},
		{"f-other-call", "call", "cus_1", parked.CallOrder("mail", "acme", "stock", "cus_2")},
	} {
		keys[r.name] = uuid.NewString()
		put(r.name, r.kind, r.recordKey, r.order, keys[r.name])
	}
	by := ops.By{Actor: "ann", Reason: "GDPR-4"}
	in := ops.EraseParkedInput{OrderingKey: "cus_1"}
	seen, err := ops.EraseParked(t.Context(), pool, ops.By{DryRun: true}, in)
	if err != nil || len(seen.Rows) != 4 {
		t.Fatalf("%+v, %v", seen, err)
	}
	exec(t, pool, `update onlyonce.parked set state = 'waiting', settled_at = null where reason = 'b-by-order'`)
	if _, err := ops.EraseParked(t.Context(), pool, by, in); !errors.Is(err, ops.ErrRefused) {
		t.Errorf("one of them is not settled: %v", err)
	}
	exec(t, pool, `update onlyonce.parked set state = 'discarded', settled_at = now() where reason = 'b-by-order'`)
	in.Shown = seen
	done, err := ops.EraseParked(t.Context(), pool, by, in)
	if err != nil || done.AuditID == 0 {
		t.Fatal(err)
	}
	if got := one[string](t, pool, held); got != "e-other f-other-call" {
		t.Errorf("still held: %s", got)
	}
	if n := one[int](
		t,
		pool,
		`
select count(*)
  from onlyonce.parked
 where erased_at is not null
   and key is not null
   and response_body is null
   and (kind = 'call' or body is null and header_names = '{}' and header_values = '{}')`,
	); n != 4 {
		t.Errorf("%d of 4 rows are erased and have their keys", n)
	}
	if n := one[int](t, pool, `select count(*) from onlyonce.parked where kind = 'call' and header_names <> '{}'`); n != 2 {
		t.Errorf("%d of 2 calls have their headers, which are compared when they are enqueued again", n)
	}
	in.Shown = nil
	if _, err := ops.EraseParked(t.Context(), pool, by, in); !errors.Is(err, ops.ErrNothing) {
		t.Errorf("erased already: %v", err)
	}
	if _, err := ops.EraseParked(t.Context(), pool, by, ops.EraseParkedInput{Key: keys["f-other-call"]}); err != nil {
		t.Error(err)
	}
	if _, err := ops.EraseParked(t.Context(), pool, by, ops.EraseParkedInput{ID: 5}); err != nil {
		t.Error(err)
	}
	if got := one[string](t, pool, held); got != "" {
		t.Errorf("still held: %s", got)
	}
	for _, c := range []struct {
		in   ops.EraseParkedInput
		want error
	}{
		{ops.EraseParkedInput{}, ops.ErrInvalid},
		{ops.EraseParkedInput{ID: 1, Key: uuid.NewString()}, ops.ErrInvalid},
		{ops.EraseParkedInput{Key: "x"}, ops.ErrInvalid},
		{ops.EraseParkedInput{ID: -1}, ops.ErrInvalid},
		{ops.EraseParkedInput{ID: 99}, ops.ErrNotFound},
		{ops.EraseParkedInput{OrderingKey: "nobody"}, ops.ErrNotFound},
	} {
		if _, err := ops.EraseParked(t.Context(), pool, by, c.in); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v, want %v", c.in, err, c.want)
		}
	}
}
