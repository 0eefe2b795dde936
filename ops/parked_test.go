package ops_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

const parkSQL = `
insert into onlyonce.parked (
  kind,
  state,
  reason,
  error,
  attempts,
  tenant,
  scope,
  topic,
  partition,
  "offset",
  key,
  header_names,
  header_values,
  body
)
select 'message',
       'waiting',
       'exhausted',
       'HTTP 503',
       10,
       '',
       'stock',
       'orders',
       0,
       n,
       gen_random_uuid(),
       '{}',
       '{}',
       ''
  from generate_series(1, $1::int) n`

func parks(t *testing.T, pool *pgxpool.Pool, n int) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), parkSQL, n); err != nil {
		t.Fatal(err)
	}
}

// A decision does what was shown: no more, and nothing that has changed.
func TestRedriveOfWhatWasShown(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	parks(t, pool, 5)
	in := ops.ParkedInput{ParkedFilter: ops.ParkedFilter{Scope: "stock", Limit: 4}}
	shown, err := ops.Redrive(t.Context(), pool, ops.By{DryRun: true}, in)
	good := err == nil &&
		shown.Count == 4 &&
		shown.More &&
		one[int](t, pool, `select count(*) from onlyonce.parked where state <> 'waiting'`) == 0
	if !good {
		t.Fatalf("%+v, %v", shown, err)
	}
	gone, err := ops.Discard(
		t.Context(),
		pool,
		ops.By{Reason: "a test order"},
		ops.ParkedInput{ParkedFilter: ops.ParkedFilter{ID: shown.IDs[1]}},
	)
	if err != nil || len(gone.GivenUp) != 1 {
		t.Fatalf("%+v, %v", gone, err)
	}
	parks(t, pool, 1)
	in.Shown = shown
	if _, err := ops.Redrive(t.Context(), pool, ops.By{Reason: "why"}, in); !errors.Is(err, ops.ErrChanged) {
		t.Errorf("a row of what was shown is gone: %v", err)
	}
	if n := one[int](t, pool, `select count(*) from onlyonce.parked where state = 'retrying'`); n != 0 {
		t.Errorf("%d rows are due after a refusal", n)
	}
	in.Shown = nil
	if in.Shown, err = ops.Redrive(t.Context(), pool, ops.By{DryRun: true}, in); err != nil {
		t.Fatal(err)
	}
	done, err := ops.Redrive(t.Context(), pool, ops.By{Actor: "ann", Reason: "INC-7"}, in)
	if err != nil || done.Count != 4 || slices.Contains(done.IDs, shown.IDs[1]) {
		t.Fatalf("%+v, %v", done, err)
	}
	if n := one[int](t, pool, `select count(*) from onlyonce.parked where state = 'retrying' and attempts = 0`); n != 4 {
		t.Errorf("%d rows are due", n)
	}
	if got := one[string](t, pool, `select concat_ws(' ', actor, reason, detail->>'count') from onlyonce.audit where id = $1`,
		done.AuditID); got != "ann INC-7 4" {
		t.Error(got)
	}
	if _, err := ops.Redrive(t.Context(), pool, ops.By{Reason: "again"}, in); !errors.Is(err, ops.ErrRefused) {
		t.Errorf("all of it has changed: %v", err)
	}
}

// T13: of the redriven rows of an ordering key only the first is retrying, so that no look for what
// is due passes over the others. They become due as those before them are settled, also if that
// happens while they are redriven.
func TestT13RedrivenRowsOfAKeyWait(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	parks(t, pool, 3)
	if _, err := pool.Exec(t.Context(), `update onlyonce.parked set order_key = '00000000-0000-4000-8000-000000000007'`); err != nil {
		t.Fatal(err)
	}
	redrive := func(id int64) {
		t.Helper()
		if _, err := ops.Redrive(
			t.Context(),
			pool,
			ops.By{Reason: "why"},
			ops.ParkedInput{ParkedFilter: ops.ParkedFilter{ID: id}},
		); err != nil {
			t.Fatal(err)
		}
	}
	states := func(want string) {
		t.Helper()
		got := one[string](
			t,
			pool,
			`
select string_agg(state || case when next_attempt_at is null then '' else ' due' end, ', ' order by "offset")
  from onlyonce.parked`,
		)
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	ids := one[[]int64](t, pool, `select array_agg(id order by "offset") from onlyonce.parked`)
	redrive(ids[2])
	states("waiting, waiting, blocked")
	redrive(ids[0])
	redrive(ids[1])
	states("retrying due, blocked, blocked")
	if _, err := ops.Discard(
		t.Context(),
		pool,
		ops.By{Reason: "why"},
		ops.ParkedInput{ParkedFilter: ops.ParkedFilter{ID: ids[0]}},
	); err != nil {
		t.Fatal(err)
	}
	states("discarded, retrying due, blocked")
}

func TestRedriveRefuses(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	parks(t, pool, 1)
	id := one[int64](t, pool, `update onlyonce.parked set state = 'discarded', settled_at = clock_timestamp() returning id`)
	for name, c := range map[string]struct {
		in   ops.ParkedInput
		kind error
	}{
		"nothing named":  {ops.ParkedInput{}, ops.ErrInvalid},
		"a kind unknown": {ops.ParkedInput{ParkedFilter: ops.ParkedFilter{Scope: "stock", Kind: "letter"}}, ops.ErrInvalid},
		"more than allowed": {
			ops.ParkedInput{ParkedFilter: ops.ParkedFilter{Scope: "stock", Limit: reports.MostLimit + 1}},
			ops.ErrInvalid,
		},
		"for calls": {ops.ParkedInput{ParkedFilter: ops.ParkedFilter{Scope: "stock"}, NewKey: true}, ops.ErrInvalid},
		"not there": {ops.ParkedInput{ParkedFilter: ops.ParkedFilter{ID: id + 1}}, ops.ErrNotFound},
		"settled":   {ops.ParkedInput{ParkedFilter: ops.ParkedFilter{ID: id}}, ops.ErrRefused},
		"none":      {ops.ParkedInput{ParkedFilter: ops.ParkedFilter{Scope: "stock"}}, ops.ErrRefused},
	} {
		if _, err := ops.Redrive(t.Context(), pool, ops.By{Reason: "why"}, c.in); !errors.Is(err, c.kind) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := one[int](t, pool, `select count(*) from onlyonce.audit`); n != 0 {
		t.Errorf("%d audit rows for nothing", n)
	}
}

// Two operators decide about one row: one of them succeeds.
func TestDiscardAtOnce(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	parks(t, pool, 1)
	errs := make(chan error)
	for range 2 {
		go func() {
			_, err := ops.Discard(t.Context(), pool, ops.By{Reason: "why"}, ops.ParkedInput{ParkedFilter: ops.ParkedFilter{Scope: "stock"}})
			errs <- err
		}()
	}
	refused := 0
	for range 2 {
		if err := <-errs; errors.Is(err, ops.ErrRefused) {
			refused++
		} else if err != nil {
			t.Error(err)
		}
	}
	if n := one[int](t, pool, `select count(*) from onlyonce.audit`); n != 1 || refused != 1 {
		t.Errorf("%d audit rows, %d refused", n, refused)
	}
}

// O6: in the database a decision about a call does what parked.KnownCall.Decide says, and is
// refused where that refuses it.
func TestO6DecisionsAboutEachCall(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	const insert = `
insert into onlyonce.parked (
  kind,
  state,
  reason,
  attempts,
  scope,
  key,
  sink,
  lane,
  partition,
  "offset",
  row_id,
  call_name,
  method,
  target,
  body,
  first_attempt_at,
  open,
  response_status
)
values (
  'call',
  $1,
  $2,
  3,
  'shop',
  gen_random_uuid(),
  'payments',
  0,
  0,
  $4::bigint,
  $4::bigint,
  'charge',
  'POST',
  '/',
  '',
  case when $3::boolean then clock_timestamp() end,
  $3::boolean,
  case when $2 = 'completion' then 201 end
) returning id`
	const known = `
select state, reason, settled_at is null and response_status is null and (open or state = 'reconcile')
  from onlyonce.parked where id = $1`
	inputs := map[parked.Decision]ops.ParkedInput{
		parked.SendAgain: {}, parked.VerifiedApplied: {VerifiedApplied: true}, parked.VerifiedNotApplied: {VerifiedNotApplied: true},
		parked.AnotherKey: {NewKey: true}, parked.AnotherKeyVerified: {NewKey: true, VerifiedNotApplied: true}, parked.GiveUp: {},
	}
	rows := int64(0)
	for _, state := range []string{parked.Waiting, parked.Retrying, parked.Blocked, parked.Reconcile} {
		for _, reason := range []string{
			parked.Rejected,
			parked.Failed,
			parked.Postponed,
			parked.Window,
			parked.Unsafe,
			parked.Unopened,
			parked.Completion,
		} {
			for _, open := range []bool{false, true} {
				for d, in := range inputs {
					rows++
					id := pgtest.One[int64](t, pool, insert, state, reason, open, rows)
					accepted := reason == parked.Completion
					call := parked.KnownCall{
						State:    state,
						Reason:   reason,
						Open:     !accepted && (open || state == parked.Reconcile),
						Accepted: accepted,
					}
					want, refused := call.Decide(d)
					in.ID = id
					decide := ops.Redrive
					if d == parked.GiveUp {
						decide = ops.Discard
					}
					_, err := decide(t.Context(), pool, ops.By{Reason: "why"}, in)
					if (err != nil) != (refused != "") || err != nil && !errors.Is(err, ops.ErrRefused) {
						t.Errorf("%+v, decision %d: %v, want %q", call, d, err, refused)
						continue
					}
					var got parked.KnownCall
					if err := pool.QueryRow(t.Context(), known, id).Scan(&got.State, &got.Reason, &got.Open); err != nil {
						t.Fatal(err)
					}
					want.Accepted = false
					want.Open = want.Open && want.State != parked.Resolved && want.State != parked.Discarded
					if got != want && refused == "" {
						t.Errorf("%+v, decision %d: %+v, want %+v", call, d, got, want)
					}
				}
			}
		}
	}
}

// O6: of calls that a filter picks, only those that are not open get a new key, and only open ones
// are resolved.
func TestO6NewKeyOfAnOpenCall(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	pgtest.Exec(t, pool, `
insert into onlyonce.parked (
  kind,
  state,
  reason,
  attempts,
  scope,
  key,
  sink,
  lane,
  partition,
  "offset",
  row_id,
  call_name,
  method,
  target,
  body,
  first_attempt_at,
  open
)
select 'call',
       'waiting',
       'rejected',
       3,
       'shop',
       gen_random_uuid(),
       'payments',
       0,
       0,
       n,
       n,
       'charge',
       'POST',
       '/',
       '',
       case when n <= 2 then clock_timestamp() end,
       n <= 2
  from generate_series(1, 5) n`)
	filter := ops.ParkedFilter{Kind: "call", Sink: "payments"}
	for _, c := range []struct {
		in   ops.ParkedInput
		want int
	}{
		{ops.ParkedInput{NewKey: true}, 3},
		{ops.ParkedInput{VerifiedApplied: true}, 2},
		{ops.ParkedInput{VerifiedNotApplied: true}, 2},
		{ops.ParkedInput{}, 5},
	} {
		c.in.ParkedFilter = filter
		got, err := ops.Redrive(t.Context(), pool, ops.By{DryRun: true}, c.in)
		if err != nil || got.Count != c.want {
			t.Errorf("%+v: %+v, %v; want %d", c.in, got, err, c.want)
		}
	}
}

// A table is repaired, and what its consumer had parked meanwhile is tried again: first a dry run,
// which a person sees, and then what was shown.
func ExampleRedrive() {
	ctx, pool, end := exampleDatabase()
	defer end()

	in := ops.ParkedInput{ParkedFilter: ops.ParkedFilter{Scope: "stock", Topic: "orders", Reason: "exhausted"}, All: true}
	shown, err := ops.Redrive(ctx, pool, ops.By{DryRun: true}, in)
	if err != nil {
		panic(err)
	}
	fmt.Println("would redrive", shown.Count)
	for _, row := range shown.Rows[:min(2, len(shown.Rows))] {
		fmt.Println("for example", *row.Topic, *row.Partition, *row.Offset)
	}

	in.Shown = shown
	done, err := ops.Redrive(ctx, pool, ops.By{Actor: "ann", Reason: "the table is repaired, INC-7"}, in)
	if err != nil {
		panic(err)
	}
	fmt.Println("redriven", done.Changed, "skipped", done.Skipped)
	// Output:
	// would redrive 3
	// for example orders 0 1
	// for example orders 0 2
	// redriven 3 skipped 0
}
