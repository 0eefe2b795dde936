package ops_test

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// move moves acme, and returns the error of the step that refused.
func move(t *testing.T, from, to *pgxpool.Pool, name string, standardKeys bool) error {
	t.Helper()
	if _, err := ops.LeavePlace(t.Context(), from, ops.By{Reason: "OPS-40"}, ops.LeavePlaceInput{Place: "acme", To: name}); err != nil {
		return err
	}
	return adoptFrom(t, from, to, name, standardKeys)
}

func adoptFrom(t *testing.T, from, to *pgxpool.Pool, as string, standardKeys bool) error {
	t.Helper()
	in := ops.AdoptPlaceInput{Place: "acme", From: &ops.Origin{DB: from, Name: "the other", As: as, StandardKeys: standardKeys}}
	seen, err := ops.AdoptPlace(t.Context(), to, ops.By{DryRun: true}, in)
	if err != nil {
		return err
	}
	in.Shown = seen
	_, err = ops.AdoptPlace(t.Context(), to, ops.By{Reason: "OPS-40"}, in)
	return err
}

func placeStates(t *testing.T, pools ...*pgxpool.Pool) (states string) {
	t.Helper()
	for _, pool := range pools {
		places, more, err := placesOf(t, pool, reports.PlaceFilter{Place: "acme"})
		switch {
		case err != nil || more || len(places) > 1:
			t.Fatal(places, more, err)
		case len(places) == 0:
			states += "- "
		default:
			states += places[0].State + " "
		}
	}
	return states
}

// N3: a database takes a place over only if the place has left the other one, for this one, and was
// not here later.
func TestN3MovesAreInOrder(t *testing.T) {
	t.Parallel()
	a := pgtest.DB(t)
	b := pgtest.DB(t)
	c := pgtest.DB(t)
	if err := move(t, a, b, "b", false); !errors.Is(err, ops.ErrNotFound) {
		t.Errorf("a place that is not known: %v", err)
	}
	if _, err := ops.AdoptPlace(t.Context(), a, ops.By{Reason: "first"}, ops.AdoptPlaceInput{Place: "acme"}); err != nil {
		t.Fatal(err)
	}
	if err := adoptFrom(t, a, b, "b", false); !errors.Is(err, ops.ErrRefused) {
		t.Errorf("it has not left: %v", err)
	}
	if err := move(t, a, b, "b", false); err != nil {
		t.Fatal(err)
	}
	if err := adoptFrom(t, a, c, "c", false); !errors.Is(err, ops.ErrRefused) {
		t.Errorf("it has left for another one: %v", err)
	}
	if err := adoptFrom(t, a, b, "b", false); !errors.Is(err, ops.ErrNothing) {
		t.Errorf("a second time: %v", err)
	}
	if _, err := ops.LeavePlace(
		t.Context(),
		a,
		ops.By{Reason: "again"},
		ops.LeavePlaceInput{Place: "acme", To: "b"},
	); !errors.Is(err, ops.ErrNothing) {
		t.Errorf("it has left already: %v", err)
	}
	if err := move(t, b, c, "c", false); err != nil {
		t.Fatal(err)
	}
	if err := adoptFrom(t, a, b, "b", false); !errors.Is(err, ops.ErrRefused) { // its state in a is older
		t.Errorf("the first move again, after the second: %v", err)
	}
	if _, err := ops.AdoptPlace(
		t.Context(),
		b,
		ops.By{Reason: "by mistake"},
		ops.AdoptPlaceInput{Place: "acme"},
	); !errors.Is(err, ops.ErrRefused) {
		t.Errorf("a place that has left, without -from: %v", err)
	}
	if got := placeStates(t, a, b, c); got != "left left here " {
		t.Error(got)
	}
	if err := move(t, c, a, "a", false); err != nil {
		t.Error(err)
	}
	if got := placeStates(t, a, b, c); got != "here left left " {
		t.Error(got)
	}
}

// What remains of a place keeps it in the state leaving; it can stay after all.
func TestLeavingWaitsForWhatWasBegun(t *testing.T) {
	t.Parallel()
	a := pgtest.DB(t)
	exec(t, a, `insert into onlyonce.places (place, state) values ('acme', 'here')`)
	exec(t, a, `insert into onlyonce.streams (topic, partitions) values ('webhook.acme', 1)`)
	exec(t, a, `
select onlyonce.append_events(
  '{webhook.acme}',
  '{0}',
  '{""}',
  '{evt_1}',
  '{null}',
  '{0}',
  '{}',
  '{}',
  '{null}'
)`)
	exec(t, a, `insert into onlyonce.parked (kind, reason, tenant, scope) values ('event', 'permanent', 'acme', 's')`)
	exec(
		t,
		a,
		`
insert into onlyonce.operations (
  id,
  record_id,
  topic,
  tenant,
  principal,
  name,
  keep
) values (
  gen_random_uuid(),
  gen_random_uuid(),
  'operations',
  'acme',
  '',
  'export',
  '1 day'
)`,
	)
	in := ops.LeavePlaceInput{Place: "acme", To: "b"}
	done, err := ops.LeavePlace(t.Context(), a, ops.By{Reason: "OPS-40"}, in)
	good := err == nil &&
		done.After == "leaving" &&
		done.Operations == 1 &&
		done.Events == 1 &&
		done.Parked == 1
	if !good {
		t.Fatalf("%+v, %v", done, err)
	}
	if err := adoptFrom(t, a, pgtest.DB(t), "b", false); !errors.Is(err, ops.ErrRefused) {
		t.Errorf("adopted while it is leaving: %v", err)
	}
	if _, err := ops.LeavePlace(
		t.Context(),
		a,
		ops.By{Reason: "OPS-40"},
		ops.LeavePlaceInput{Place: "acme", To: "c"},
	); !errors.Is(err, ops.ErrRefused) {
		t.Errorf("for another one: %v", err)
	}
	if _, err := ops.AdoptPlace(t.Context(), a, ops.By{Reason: "not today"}, ops.AdoptPlaceInput{Place: "acme"}); err != nil ||
		placeStates(t, a) != "here " {
		t.Errorf("%v: it stays, %s", err, placeStates(t, a))
	}
	exec(t, a, `update onlyonce.operations set completed_at = now()`)
	exec(t, a, `update onlyonce.parked set settled_at = now(), state = 'discarded'`)
	handled := func(at int64) {
		t.Helper()
		if _, err := ops.AdoptCursor(
			t.Context(),
			a,
			ops.By{Reason: "handled"},
			ops.AdoptInput{Scope: "s", Topic: "webhook.acme", Partition: new(int32), At: strconv.FormatInt(at, 10)},
		); err != nil {
			t.Fatal(err)
		}
	}
	handled(0)
	if done, err = ops.LeavePlace(t.Context(), a, ops.By{Reason: "OPS-41"}, in); err != nil || done.After != "leaving" || done.Events != 1 {
		t.Errorf("its consumer is behind: %+v, %v", done, err)
	}
	handled(1)
	if done, err = ops.LeavePlace(t.Context(), a, ops.By{Reason: "OPS-41"}, in); err != nil || done.After != "left" {
		t.Errorf("%+v, %v", done, err)
	}
}

// N2: a tenant's events are counted before its requests have to wait. Those that come meanwhile are
// counted, too.
func TestN2LeavingCountsBeforeItLocks(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	a := pgtest.DB(t)
	exec(t, a, `insert into onlyonce.places (place, state) values ('acme', 'here')`)
	exec(t, a, `insert into onlyonce.streams (topic, partitions) values ('webhook.acme', 1)`)
	counting, err := a.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = counting.Rollback(ctx) }()
	if _, err := counting.Exec(ctx, `lock table onlyonce_segments.event_log_0 in access exclusive mode`); err != nil {
		t.Fatal(err)
	}
	type outcome struct {
		done *ops.LeftPlace
		err  error
	}
	left := make(chan outcome, 1)
	go func() {
		done, err := ops.LeavePlace(ctx, a, ops.By{Reason: "OPS-40"}, ops.LeavePlaceInput{Place: "acme", To: "b"})
		left <- outcome{done, err}
	}()
	waits := func(what, locktype string) {
		t.Helper()
		pgtest.Until(t, pgtest.Patience(time.Minute), what, func() bool {
			var waiting bool
			err := a.QueryRow(
				ctx,
				`
select exists (select from pg_locks
                where locktype = $1
                  and not granted
                  and database = (select oid from pg_database where datname = current_database()))`,
				locktype,
			).Scan(&waiting)
			return err == nil && waiting
		})
	}
	waits("it counts", "relation")
	request, err := a.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = request.Rollback(ctx) }()
	var admitted bool
	if err := request.QueryRow(ctx, `select pg_try_advisory_xact_lock_shared(1869507688, hashtext('acme'))`).Scan(&admitted); err != nil ||
		!admitted {
		t.Fatalf("a request has to wait while it counts: %v", err)
	}
	if err := counting.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	waits("it waits for the request", "advisory")
	if _, err := request.Exec(
		ctx,
		`
select onlyonce.append_events(
  '{webhook.acme}',
  '{0}',
  '{""}',
  '{evt_1}',
  '{null}',
  '{0}',
  '{}',
  '{}',
  '{null}'
)`,
	); err != nil {
		t.Fatal(err)
	}
	if err := request.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if got := <-left; got.err != nil || got.done.After != "leaving" || got.done.Events != 1 {
		t.Errorf("%+v, %v: want that it has an event left", got.done, got.err)
	}
}

// Keys come along if they are asked for, not after they may be forgotten; webhooks' versions of
// objects do too (N3).
func TestKeysMoveWithAPlace(t *testing.T) {
	t.Parallel()
	a := pgtest.DB(t)
	b := pgtest.DB(t)
	exec(t, a, `insert into onlyonce.places (place, state) values ('acme', 'here')`)
	exec(t, a, `select onlyonce.claim(array[onlyonce.key('acme', 's', '1')], '{7}')`)
	exec(t, a, `select onlyonce.newer('s', gen_random_uuid(), 5)`)
	const both = "00000000-0000-8000-8000-000000000001"
	exec(t, a, `select onlyonce.newer('s', $1, 6)`, both)
	exec(t, b, `insert into onlyonce.webhook_objects values ('s', $1, 3, now() - interval '179 days')`, both)
	if _, err := ops.LeavePlace(t.Context(), a, ops.By{Reason: "OPS-40"}, ops.LeavePlaceInput{Place: "acme", To: "b"}); err != nil {
		t.Fatal(err)
	}
	exec(t, a, `update onlyonce.places set changed_at = now() - interval '8 days'`)
	if err := adoptFrom(t, a, b, "b", true); !errors.Is(err, ops.ErrRefused) {
		t.Errorf("too late: %v", err)
	}
	in := ops.AdoptPlaceInput{Place: "acme", From: &ops.Origin{DB: a, Name: "a", As: "b", StandardKeys: true, Late: true}}
	done, err := ops.AdoptPlace(t.Context(), b, ops.By{Reason: "OPS-40"}, in)
	if err != nil || *done.Keys != 1 {
		t.Fatalf("%+v, %v", done, err)
	}
	if got := one[[]int16](t, b, `select onlyonce.claim(array[onlyonce.key('acme', 's', '1')], '{7}')`); len(got) != 1 || got[0] != 1 {
		t.Errorf("a copy in b: %v", got)
	}
	if n := one[int](t, b, `select count(*) from onlyonce.webhook_objects where version = 5`); n != 1 {
		t.Error("the version of an object did not come along")
	}
	if n := one[int](
		t,
		b,
		`select count(*) from onlyonce.webhook_objects where version = 6 and changed_at > now() - interval '1 day'`,
	); n != 1 {
		t.Error("an object that is known here has another version, or will be forgotten (W21) although it was touched there lately")
	}
}

func TestInvalidPlaces(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	by := ops.By{Reason: "why"}
	for name, err := range map[string]error{
		"no place":     second(ops.LeavePlace(t.Context(), pool, by, ops.LeavePlaceInput{To: "b"})),
		"no name":      second(ops.LeavePlace(t.Context(), pool, by, ops.LeavePlaceInput{Place: "acme"})),
		"no place, in": second(ops.AdoptPlace(t.Context(), pool, by, ops.AdoptPlaceInput{})),
		"no database":  second(ops.AdoptPlace(t.Context(), pool, by, ops.AdoptPlaceInput{Place: "acme", From: &ops.Origin{As: "b"}})),
		"no own name": second(ops.AdoptPlace(t.Context(), pool, by, ops.AdoptPlaceInput{
			Place: "acme",
			From:  &ops.Origin{DB: pool, Name: "a"},
		})),
	} {
		if !errors.Is(err, ops.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func placesOf(t *testing.T, pool *pgxpool.Pool, f reports.PlaceFilter) (found []reports.Place, more bool, err error) {
	t.Helper()
	err = reports.Snapshot(t.Context(), pool, func(tx pgx.Tx) (err error) {
		found, more, err = reports.Places(t.Context(), tx, f)
		return err
	})
	return found, more, err
}
