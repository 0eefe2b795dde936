package main

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/seal"
)

// claims makes a request in lease mode whose process has died, as the HTTP layer leaves it: a step
// was begun, and has no result.
func (f *fixture) claims(tenant, key, step string) (id string) {
	f.t.Helper()
	const scope = "http POST /v1/charges"
	id = one[string](f, `select onlyonce.key($1, $2, $3)::text`, tenant, scope, key)
	f.exec(`select onlyonce.http_claim($1, $2, $3, '', gen_random_uuid(), '2 days', '-1 second')`, id, tenant, scope)
	f.exec(`insert into onlyonce.http_steps (record_id, name) values ($1, $2)`, id, step)
	return id
}

// answers makes an answered request, as the layer does in a transaction of its own.
func (f *fixture) answers(tenant, key string) (id string) {
	f.t.Helper()
	const scope = "http POST /v1/charges"
	id = one[string](f, `select onlyonce.key($1, $2, $3)::text`, tenant, scope, key)
	f.exec(`begin;
		select onlyonce.http_open('1s', '1s', '1s');
		select onlyonce.http_complete('` + id + `', '` + tenant + `', '` + scope + `', '', gen_random_uuid(), 'private', false, '1 day');
		select onlyonce.seal();
		commit`)
	return id
}

func TestRequestResolve(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.run("request", "list").want(t, statusGood, "No requests.").lines(t, 0)
	applied := f.claims("acct_1", "k1", "charge")
	absent := f.claims("acct_1", "k2", "charge")
	running := f.claims("acct_2", "k3", "charge")
	f.exec(`update onlyonce.http_records set state = 'reconcile' where id <> $1`, running)
	f.exec(`update onlyonce.leases set until = clock_timestamp() + interval '1 hour' where name = $1`, "http/"+running)
	f.run("request", "list").want(
		t,
		statusGood,
		applied,
		absent,
		"reconcile",
		"running",
		"charge",
		"http POST /v1/charges",
		"onlyonce request resolve -id "+applied+" -step charge -applied -result TEXT -reason WHY",
		"onlyonce request close -id "+absent+" -reason WHY",
	)
	var row ops.Request
	out := f.run("request", "list", "-tenant", "acct_2", "-json").want(t, statusGood).lines(t, 0).out
	err := json.Unmarshal([]byte(out), &row)
	good := err == nil &&
		row.ID == running &&
		row.State == "running" &&
		len(row.Unknown) == 1 &&
		row.UnknownSince != nil
	if !good {
		t.Errorf("%v: %+v", err, row)
	}

	f.run("request", "resolve", "-id", applied, "-step", "charge", "-reason", "r", "-yes").want(
		t,
		statusEnvironment,
		"-applied or -not-applied",
	)
	f.run("request", "resolve", "-id", applied, "-step", "refund", "-applied", "-result", "x", "-reason", "r", "-yes").want(
		t,
		statusEnvironment,
		`no step "refund"`,
		"charge",
	)
	f.run("request", "resolve", "-id", running, "-step", "charge", "-applied", "-result", "x", "-reason", "r", "-yes").want(
		t,
		statusFailed,
		"the request is running",
	)
	f.run("request", "resolve", "-id", applied, "-step", "charge", "-applied", "-reason", "found it", "-yes").want(
		t,
		statusEnvironment,
		"missing: -result",
	)
	f.run("request", "resolve", "-id", applied, "-step", "charge", "-applied", "-result", "ch_1", "-reason", "found it", "-yes").want(
		t,
		statusGood,
		"was applied",
		"audit row",
	)
	f.run("request", "resolve", "-id", absent, "-step", "charge", "-not-applied", "-reason", "not there", "-yes").want(
		t,
		statusGood,
		"had no effect",
	)
	if got := one[string](f, `select convert_from(result, 'UTF8') from onlyonce.http_steps where record_id = $1 and done_at is not null`,
		applied); got != "ch_1" {
		t.Errorf("the step's result is %q", got)
	}
	if n := one[int](f, `select count(*) from onlyonce.http_steps where record_id = $1`, absent); n != 0 {
		t.Errorf("%d steps", n)
	}
	if n := one[int](
		f,
		`select count(*) from onlyonce.http_records r join onlyonce.leases l on l.id = r.lease_id
			where r.state = 'running' and l.until <= clock_timestamp() and l.nonce is null`,
	); n != 2 {
		t.Errorf("%d requests can be taken over, want 2", n)
	}
	f.run("request", "resolve", "-id", applied, "-step", "charge", "-applied", "-result", "x", "-reason", "again", "-yes").want(
		t,
		statusEnvironment,
		`no step "charge"`,
	)
}

// The result that an operator gives for a step is sealed too, in its place, if the layer seals. If
// it cannot be sealed, it is refused (H24).
func TestRequestResolveSeals(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.claims("acct_1", "k1", "charge")
	f.exec(`update onlyonce.http_steps set sealed = true`)
	resolve := func(more ...string) result {
		return f.run(append([]string{"request", "resolve", "-id", id, "-step", "charge", "-reason", "r", "-yes"}, more...)...)
	}
	resolve("-applied", "-result", "ch_1").want(t, statusEnvironment, "-seal-keys", "RequireSealed")
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "keys.json")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	secret := file(base64.StdEncoding.EncodeToString(append([]byte{1}, make([]byte, 31)...)))
	keys := file(`{"seal_keys": [{"id": 7, "key": {"file": "` + secret + `"}}]}`)
	resolve("-not-applied", "-seal-keys", keys).want(t, statusEnvironment, "-seal-keys: nothing is sealed")
	resolve("-applied", "-result", "ch_1", "-seal-keys", file(`{"keys": []}`)).want(t, statusEnvironment, "keys")
	resolve("-applied", "-result", "ch_1", "-seal-keys", file(`{}`)).want(t, statusEnvironment, "holds no key")
	if n := one[int](f, `select count(*) from onlyonce.http_steps where done_at is null`); n != 1 {
		t.Fatal("a refused command has changed the step")
	}
	resolve("-applied", "-result", "ch_1", "-seal-keys", keys).want(t, statusGood, "was applied")
	sealer, err := seal.New(seal.Keys{Current: 7, ByID: map[uint32]seal.Key{7: {1}}})
	if err != nil {
		t.Fatal(err)
	}
	stored := one[[]byte](f, `select result from onlyonce.http_steps where sealed and done_at is not null`)
	if got, err := sealer.Open(codec.SealPlace(uuid.MustParse(id), "step", "charge"), stored); err != nil || string(got) != "ch_1" {
		t.Errorf("%q, %v", got, err)
	}
	if detail := one[string](f, `select string_agg(detail::text, ' ') from onlyonce.audit`); strings.Contains(detail, "ch_1") {
		t.Errorf("the audit row has the result: %s", detail)
	}
}

// If a request is never completed, only an operator can end it. It counts as having taken effect,
// so that copies get 410. A process that has just read that the request is free does not take it
// over (H18).
func TestRequestClose(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	left := f.claims("acct_1", "k1", "charge")
	running := f.claims("acct_2", "k2", "charge")
	f.exec(`update onlyonce.http_steps set done_at = clock_timestamp(), result = 'ch_1' where record_id = $1`, left)
	f.exec(`update onlyonce.http_records set abandoned_at = clock_timestamp() where id = $1`, left)
	f.exec(`update onlyonce.leases set until = clock_timestamp() + interval '1 hour' where name = $1`, "http/"+running)
	f.run("request", "list").want(t, statusGood, left, "abandoned", "STEPS DONE", "charge")
	f.run("request", "close", "-id", running, "-reason", "r", "-yes").want(t, statusFailed, "the request is running")
	f.run("request", "close", "-reason", "r", "-yes").want(t, statusEnvironment, "missing: -id")
	epoch := one[int64](f, `select epoch from onlyonce.leases where name = $1`, "http/"+left)
	f.run("request", "close", "-id", left, "-reason", "refunded by hand", "-yes").want(t, statusGood, "copies of it get 410", "audit row")
	if n := one[int](
		f,
		`select count(*) from onlyonce.http_records
			where id = $1 and state = 'completed' and erased_at is not null and response is null
			and expires_at > clock_timestamp() + interval '47 hours'`,
		left,
	); n != 1 {
		t.Error("it is not completed as one that is erased")
	}
	if raised := one[*int64](f, `select onlyonce.raise_epoch(id, $2, gen_random_uuid(), '1 minute') from onlyonce.leases where name = $1`,
		"http/"+left, epoch); raised != nil {
		t.Error("it can be taken over")
	}
	f.run("request", "close", "-id", left, "-reason", "r", "-yes").want(t, statusFailed, "the request is completed")
	f.exec(`update onlyonce.http_records set expires_at = clock_timestamp() where id = $1`, left)
	f.exec(`select onlyonce.http_purge(10)`)
	if n := one[int](f, `select (select count(*) from onlyonce.http_steps) + (select count(*) from onlyonce.leases)`); n != 2 {
		t.Errorf("%d rows of steps and leases, want those of the request that runs", n)
	}
}

func TestRequestErase(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.answers("acct_1", "k1")
	other := f.answers("acct_2", "k1")
	open := f.claims("acct_1", "k2", "charge")
	f.run("request", "erase", "-id", open, "-reason", "r", "-yes").want(t, statusFailed, "not completed")
	f.run("request", "erase", "-scope", "http POST /v1/charges", "-key", "k9", "-reason", "r", "-yes").want(
		t,
		statusEnvironment,
		"there is no request",
	)
	f.run("request", "erase", "-id", id, "-key", "k1", "-scope", "s", "-reason", "r", "-yes").want(
		t,
		statusEnvironment,
		"-id: names the request by itself",
	)
	f.run("request", "erase", "-tenant", "acct_1", "-scope", "http POST /v1/charges", "-key", "k1", "-reason", "GDPR", "-yes").want(
		t,
		statusGood,
		id,
		"Erase the answer",
	)
	f.run("request", "erase", "-id", id, "-reason", "GDPR", "-yes").want(t, statusGood, "erased already")
	left := one[string](f, `select string_agg(id::text, ',') from onlyonce.http_records where response is not null`)
	if left != other {
		t.Errorf("answers are left of %s, want %s", left, other)
	}
	f.run("request", "list", "-all", "-tenant", "acct_2").want(t, statusGood, other, "completed")
	if n := one[int](f, `select count(*) from onlyonce.audit where action = 'request erase' and detail->>'id' = $1`, id); n != 1 {
		t.Errorf("%d audit rows", n)
	}
	if strings.Contains(f.run("request", "list", "-all", "-json").out, "private") {
		t.Error("the list shows an answer")
	}
}
