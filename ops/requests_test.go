package ops_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// leaves makes a request in lease mode whose process has died in a step, as the HTTP layer leaves
// it.
func leaves(t *testing.T, pool *pgxpool.Pool, key, step string) (id string) {
	t.Helper()
	const scope = "http POST /v1/charges"
	id = one[string](t, pool, `select onlyonce.key('', $1, $2)::text`, scope, key)
	exec(t, pool, `
select onlyonce.http_claim(
  $1,
  '',
  $2,
  '',
  gen_random_uuid(),
  '2 days',
  '-1 second'
)`, id, scope)
	exec(t, pool, `insert into onlyonce.http_steps (record_id, name) values ($1, $2)`, id, step)
	return id
}

func requestStates(t *testing.T, pool *pgxpool.Pool, f reports.RequestFilter) (states []string) {
	t.Helper()
	found, _, err := requestsOf(t, pool, f)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range found {
		states = append(states, r.State)
	}
	slices.Sort(states)
	return states
}

func TestRequests(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	one := leaves(t, pool, "k1", "charge")
	two := leaves(t, pool, "k2", "charge")
	exec(t, pool, `update onlyonce.http_records set state = 'reconcile' where id = $1`, two)
	if got := requestStates(t, pool, reports.RequestFilter{}); !slices.Equal(got, []string{"left", "reconcile"}) {
		t.Error(got)
	}
	found, more, err := requestsOf(t, pool, reports.RequestFilter{Limit: 1})
	if err != nil || len(found) != 1 || !more {
		t.Errorf("one of two: %+v, %v, %v", found, more, err)
	}
	found, more, err = requestsOf(t, pool, reports.RequestFilter{ID: one})
	good := err == nil &&
		len(found) == 1 &&
		!more &&
		found[0].ID == one &&
		slices.Equal(found[0].Unknown, []string{"charge"}) &&
		found[0].UnknownSince != nil
	if !good {
		t.Errorf("by id: %+v, %v, %v", found, more, err)
	}
	if got := requestStates(t, pool, reports.RequestFilter{Scope: "http POST /v1/refunds"}); got != nil {
		t.Errorf("of another scope: %v", got)
	}
}

// A step's outcome is recorded once. Then the request can be taken over.
func TestResolveRequest(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	id := leaves(t, pool, "k1", "charge")
	exec(t, pool, `update onlyonce.http_records set state = 'reconcile'`)
	in := ops.ResolveRequestInput{ID: id, Step: "charge", Applied: true, Result: []byte("ch_1")}
	seen, err := ops.ResolveRequest(t.Context(), pool, ops.By{DryRun: true}, in)
	good := err == nil &&
		seen.AuditID == 0 &&
		seen.State == "reconcile" &&
		*seen.Applied
	if !good {
		t.Fatalf("%+v, %v", seen, err)
	}
	in.Shown = seen
	done, err := ops.ResolveRequest(t.Context(), pool, ops.By{Reason: "found at the provider"}, in)
	if err != nil || done.AuditID == 0 {
		t.Fatalf("%+v, %v", done, err)
	}
	if got := one[string](
		t,
		pool,
		`select convert_from(result, 'UTF8') from onlyonce.http_steps where done_at is not null`,
	); got != "ch_1" {
		t.Errorf("the step's result is %q", got)
	}
	if got := requestStates(t, pool, reports.RequestFilter{}); !slices.Equal(got, []string{"left"}) {
		t.Error(got)
	}
	in.Shown = nil
	for name, change := range map[string]func(*ops.ResolveRequestInput){
		"resolved already": func(*ops.ResolveRequestInput) {},
		"no such step":     func(in *ops.ResolveRequestInput) { in.Step = "refund" },
		"no outcome":       func(in *ops.ResolveRequestInput) { in.Applied = false },
		"no id":            func(in *ops.ResolveRequestInput) { in.ID = "k1" },
		"result of nothing": func(in *ops.ResolveRequestInput) {
			in.Applied = false
			in.NotApplied = true
		},
	} {
		in := in
		change(&in)
		if _, err := ops.ResolveRequest(t.Context(), pool, ops.By{Reason: "why"}, in); !errors.Is(err, ops.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := one[int](t, pool, `select count(*) from onlyonce.audit`); n != 1 {
		t.Errorf("%d audit rows", n)
	}
}

// A request that is closed has no answer, and its record says when copies run again. Erasing it is
// nothing more.
func TestCloseAndEraseRequest(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	id := leaves(t, pool, "k1", "charge")
	erase := ops.RequestInput{Scope: "http POST /v1/charges", Key: "k1"}
	if _, err := ops.EraseRequest(t.Context(), pool, ops.By{Reason: "GDPR-4"}, erase); !errors.Is(err, ops.ErrRefused) {
		t.Errorf("a request that is open: %v", err)
	}
	done, err := ops.CloseRequest(t.Context(), pool, ops.By{Actor: "ann", Reason: "refunded by hand"}, ops.RequestInput{ID: id})
	if err != nil || done.State != "left" {
		t.Fatalf("%+v, %v", done, err)
	}
	after, _, err := requestsOf(t, pool, reports.RequestFilter{All: true, ID: id})
	good := err == nil &&
		len(after) == 1 &&
		after[0].State == "completed" &&
		after[0].ExpiresAt != nil &&
		after[0].ErasedAt != nil
	if !good {
		t.Fatalf("%+v, %v", after, err)
	}
	if _, err := ops.EraseRequest(t.Context(), pool, ops.By{Reason: "GDPR-4"}, erase); !errors.Is(err, ops.ErrNothing) {
		t.Errorf("a request without an answer: %v", err)
	}
	if _, err := ops.CloseRequest(t.Context(), pool, ops.By{Reason: "again"}, ops.RequestInput{ID: id}); !errors.Is(err, ops.ErrRefused) {
		t.Errorf("a request that is closed: %v", err)
	}
	erase.Key = "k2"
	if _, err := ops.EraseRequest(t.Context(), pool, ops.By{Reason: "GDPR-4"}, erase); !errors.Is(err, ops.ErrNotFound) {
		t.Errorf("a request that was never made: %v", err)
	}
}

// What a request's operation keeps is erased with its answer, once it has ended, also if the
// request's record is purged by then. The audit row says so (H19).
func TestEraseRequestAndItsOperation(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	exec(t, pool, `insert into onlyonce.operations (
  id,
  record_id,
  topic,
  tenant,
  principal,
  name,
  keep,
  result
)
  values (
    '0b7e6a52-9c1d-4e6f-8a10-000000000001',
    onlyonce.key('acme', 'http POST /exports', 'k1'),
    'operations',
    'acme',
    'ann',
    'export',
    '7 days',
    '"Jane Roe"'
  )`)
	in := ops.RequestInput{Tenant: "acme", Scope: "http POST /exports", Key: "k1"}
	by := ops.By{Reason: "GDPR-4"}
	if _, err := ops.EraseRequest(t.Context(), pool, by, in); !errors.Is(err, ops.ErrRefused) ||
		!strings.Contains(err.Error(), "0b7e6a52-9c1d-4e6f-8a10-000000000001") {
		t.Errorf("while it runs: %v", err)
	}
	exec(t, pool, `update onlyonce.operations set state = 'succeeded', completed_at = now(), expires_at = now() + keep`)
	shown, err := ops.EraseRequest(t.Context(), pool, ops.By{DryRun: true}, in)
	good := err == nil &&
		shown.State == "purged" &&
		len(shown.Operations) == 1 &&
		shown.Operations[0].State == "succeeded"
	if !good {
		t.Fatalf("%+v, %v", shown, err)
	}
	in.Shown = shown
	if _, err := ops.EraseRequest(t.Context(), pool, by, in); err != nil {
		t.Fatal(err)
	}
	if !one[bool](t, pool, `select result is null and erased_at is not null from onlyonce.operations`) {
		t.Error("the result is there")
	}
	if said := one[string](
		t,
		pool,
		`select detail #>> '{operations,0,id}' from onlyonce.audit where action = 'request erase'`,
	); said != "0b7e6a52-9c1d-4e6f-8a10-000000000001" {
		t.Errorf("the audit row: %q", said)
	}
	in.Shown = nil
	if _, err := ops.EraseRequest(t.Context(), pool, by, in); !errors.Is(err, ops.ErrNotFound) {
		t.Errorf("erased already, and purged: %v", err)
	}
}

func requestsOf(t *testing.T, pool *pgxpool.Pool, f reports.RequestFilter) (found []ops.Request, more bool, err error) {
	t.Helper()
	err = reports.Snapshot(t.Context(), pool, func(tx pgx.Tx) (err error) {
		found, more, err = reports.Requests[ops.Request](t.Context(), tx, f)
		return err
	})
	return found, more, err
}
