package main

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/internal/parked"
)

// parks makes a call of sink payments that its relay has parked, and returns the parked row's id.
// The order key may be empty.
func (f *fixture) parks(name, orderKey, state, reason string) string {
	f.t.Helper()
	f.enqueues("payments", orderKey, name)
	return number(f.park(name, state, reason))
}

func (f *fixture) redrives(args ...string) result {
	return f.run(append([]string{"parked", "redrive", "-reason", "why", "-yes"}, args...)...)
}

func (f *fixture) discards(args ...string) result {
	return f.run(append([]string{"parked", "discard", "-reason", "why", "-yes"}, args...)...)
}

// call shows a parked call: its state, whether it is due, its attempts, whether a relay may have
// called under its key, and whether that is its own key.
func (f *fixture) call(id string) string {
	f.t.Helper()
	return one[string](
		f,
		`select state || case when next_attempt_at <= clock_timestamp() then ' due' when next_attempt_at is not null then ' later' else ''
			end
		|| ' ' || attempts || case when open then ' used' else ' unused' end
		|| case when key = onlyonce.key('', 'payments', call_name) then ' own' else ' new' end || case when settled_at is not null
		then ' settled' else '' end
		from onlyonce.parked where id = $1::bigint`,
		id,
	)
}

// D5: a rejected call is sent again under its key, and an open one too, within the key's window
// (O6). A call that is being retried keeps what is known of it.
func TestD5RedriveCalls(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.lists("payments")
	rejected := f.parks("rejected", "", "waiting", "rejected")
	retrying := f.parks("retrying", "", "retrying", "failed")
	open := f.parks("open", "", "waiting", "rejected")
	f.exec(`update onlyonce.parked set first_attempt_at = clock_timestamp(), open = true where id = $1::bigint`, open)
	r := f.redrives("-id", rejected).want(t, statusGood, "Redrive 1: each is sent again, under its key",
		"payments/rejected", "The relay of sink payments sends them")
	t.Log("\n" + r.out)
	f.redrives("-id", retrying).want(t, statusGood, "Done: 1 are due now")
	f.redrives("-id", open, "-new-key").want(t, statusFailed, "-new-key needs -verified-not-applied too").lines(t, 1)
	f.redrives("-id", open).want(t, statusGood, "1 of them may have been applied: an attempt had no final answer")
	for id, want := range map[string]string{
		rejected: "retrying due 0 unused own",
		retrying: "retrying due 3 used own",
		open:     "retrying due 0 used own",
	} {
		if got := f.call(id); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if n := one[int](f, `select count(*) from onlyonce.audit where action = 'parked redrive' and detail->'ids' @> $1::jsonb`,
		rejected); n != 1 {
		t.Error("audit row")
	}
	f.redrives("-id", rejected, "-new-key").want(t, statusFailed, "is being tried again", "(state retrying, reason rejected)").lines(t, 1)
	f.redrives("-id", rejected, "-verified-applied").want(t, statusFailed, "is being tried again").lines(t, 1)
}

// D5: a call that may have been applied is sent again only after an operator has verified that it
// was not.
func TestD5RedriveUnknownCalls(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.lists("payments")
	a := f.parks("a", "", "reconcile", "window")
	b := f.parks("b", "k", "reconcile", "window")
	c := f.parks("c", "", "reconcile", "window")
	behind := f.parks("d", "k", "blocked", "behind")
	f.redrives("-id", a).want(t, statusFailed, "may have been applied", "-verified-applied or -verified-not-applied").lines(t, 1)
	f.redrives("-id", a, "-new-key").want(t, statusFailed, "-new-key needs -verified-not-applied too").lines(t, 1)
	f.redrives("-kind", "call", "-sink", "payments").want(t, statusFailed, "no parked row that could be changed").lines(t, 1)
	if got := f.call(a); got != "reconcile 3 used own" {
		t.Errorf("%s", got)
	}
	f.redrives("-id", behind).want(t, statusFailed, "blocked behind another of its ordering key", "-id "+b).lines(t, 1)
	f.redrives("-id", a, "-verified-not-applied").want(t, statusGood, "which you have verified not to be applied")
	if got := f.call(a); got != "retrying due 0 unused own" {
		t.Errorf("%s", got)
	}
	f.redrives("-id", b, "-verified-applied").want(t, statusGood, "Done: 1 resolved as applied", "1 that they blocked are due now")
	if got := f.call(b) + ", " + f.call(behind); got != "resolved 3 used own settled, retrying due 3 unused own" {
		t.Errorf("%s", got)
	}
	if got := one[string](f, `select state from onlyonce.calls where name = 'b'`); got != "delivered" {
		t.Errorf("state %s", got)
	}
	f.redrives("-id", c, "-verified-not-applied", "-new-key").want(t, statusGood, "under new keys", "instead of")
	if got := f.call(c); got != "retrying due 0 unused new" {
		t.Errorf("%s", got)
	}
	if n := one[int](f, `select count(*) from onlyonce.audit where detail->'filter' @> '{"verified_not_applied": true}'`); n != 2 {
		t.Error("what was verified is not in the audit rows")
	}
}

// D5: a new key derives from the old one, and the audit row has both.
func TestD5RedriveUnderANewKey(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.lists("payments")
	id := f.parks("a", "", "waiting", "rejected")
	old := one[string](f, `select key::text from onlyonce.parked`)
	row := one[int64](f, `select row_id from onlyonce.parked`)
	f.redrives("-kind", "call", "-sink", "payments", "-new-key").want(t, statusGood, "to the remote they are other calls")
	key := one[string](f, `select key::text from onlyonce.parked`)
	good := key == parked.NewKey(old, row, 0) &&
		key != old &&
		uuid.MustParse(key).Version() == 8 &&
		uuid.MustParse(key).Variant() == uuid.RFC4122
	if !good {
		t.Errorf("key %s", key)
	}
	if n := one[int](
		f,
		`select count(*) from onlyonce.audit where detail->'keys'->0->>'old_key' = $1 and detail->'keys'->0->>'new_key' = $2`,
		old,
		key,
	); n != 1 {
		t.Error("the keys are not in the audit row")
	}
	if n := one[int](f, `select count(*) from onlyonce.calls where key = $1 and parked_id = $2::bigint`, old, id); n != 1 {
		t.Error("the log's row has lost its key")
	}
	f.exec(`update onlyonce.parked set state = 'waiting'`)
	f.redrives("-id", id, "-new-key").want(t, statusGood)
	if got := one[string](f, `select key::text from onlyonce.parked`); got != parked.NewKey(key, row, 1) ||
		got == parked.NewKey(key, row, 0) {
		t.Errorf("second key %s", got)
	}
}

// A restore may lose a redrive. The same redrive must then give the same key, so the derivation
// never changes.
func TestNewKeyIsFixed(t *testing.T) {
	t.Parallel()
	const old = "8f14e45f-ceea-867a-9a36-dedd4bea2543"
	for redrives, want := range []string{"4a027f5d-28a4-88a5-a6c8-0a133a38c052", "b5e77526-c2e3-8423-9e2b-af3e3ae32e28"} {
		if got := parked.NewKey(old, 1024, int64(redrives)); got != want {
			t.Errorf("%d redrives before: %s, want %s", redrives, got, want)
		}
	}
	if parked.NewKey(old, 1024, 0) == parked.NewKey(old, 1025, 0) {
		t.Error("two calls that were parked under one key get one new key")
	}
}

// A head of an ordering key that is redriven stays the head. If it is discarded, the next call goes
// on.
func TestRedriveAndDiscardKeyedCalls(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.lists("payments")
	head := f.parks("head",
		"k", "waiting", "rejected")
	next := f.parks("next", "k", "blocked", "behind")
	last := f.parks("last", "k", "blocked", "behind")
	f.redrives("-id", head).want(t, statusGood)
	if got := f.call(head) + ", " + f.call(next); got != "retrying due 0 unused own, blocked 3 unused own" {
		t.Errorf("%s", got)
	}
	f.exec(`update onlyonce.parked set first_attempt_at = now(), open = true where id = $1::bigint`, head)
	f.discards("-id", last).want(t, statusGood, "Done: 1 discarded")
	r := f.discards("-id", head).want(t, statusGood, "Discard 1: they are not sent",
		"1 of them were called without a final answer",
		"Done: 1 discarded",
		"1 that they blocked are due now")
	t.Log("\n" + r.out)
	if got := f.call(head) + ", " + f.call(next) + ", " + f.call(last); got != "discarded 0 used own "+
		"settled, retrying due 3 unused own, discarded 3 unused own settled" {
		t.Errorf("%s", got)
	}
	f.redrives("-id", head).want(t, statusFailed, "is settled (discarded)")
	unknown := f.parks("unknown", "", "reconcile", "window")
	f.discards("-kind", "call", "-sink", "payments", "-name", "unknown", "-state", "reconcile").want(
		t,
		statusGood,
		"the remote may or may not have applied them",
	)
	if got := f.call(unknown); got != "discarded 3 used own settled" {
		t.Errorf("%s", got)
	}
}

// A call without a key, which only a change by hand can make, is refused: relays send each call
// under its key.
func TestRedriveCallWithoutAKey(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.parks("a", "", "reconcile", "window")
	f.exec(`update onlyonce.parked set key = null where id = $1::bigint`, id)
	f.redrives("-id", id, "-verified-not-applied").want(t, statusFailed, "has no key").lines(t, 1)
}

func TestRedriveCallsPicks(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.populate()
	f.lists("payments")
	f.parks("a", "", "waiting", "rejected")
	f.parks("b", "", "retrying", "failed")
	erased := f.parks("c", "", "waiting", "rejected")
	f.exec(`update onlyonce.parked set erased_at = now(), body = '' where id = $1::bigint`, erased)
	f.redrives("-id", erased).want(t, statusFailed, "was erased").lines(t, 1)
	message := one[string](f, `select min(id)::text from onlyonce.parked where kind = 'message'`)
	f.redrives("-id", message, "-new-key").want(t, statusFailed, "is a parked message", "are for calls").lines(t, 1)
	f.redrives("-id", message, "-kind", "call").want(t, statusEnvironment, "is a parked message")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-sink", "payments"}, "add -kind call"},
		{[]string{"-scope", "s", "-new-key"}, "are for calls: add -kind call"},
		{[]string{"-kind", "call"}, "missing: -id, -sink or -scope"},
		{[]string{"-kind", "call", "-scope", "s", "-topic", "t"}, "-topic and -partition pick messages"},
		{[]string{"-kind", "call", "-sink", "s", "-verified-applied", "-new-key"}, "goes with neither"},
		{[]string{"-id", "1", "-sink", "s"}, "-id picks one row"},
	} {
		f.redrives(c.args...).want(t, statusEnvironment, c.want)
	}
	f.terminal = true
	f.stdin = strings.NewReader("n\n")
	f.run("parked", "redrive", "-kind", "call", "-sink", "payments", "-reason", "x").want(t, statusFailed, "the answer was no")
	f.redrives("-kind", "call", "-sink", "payments", "-state", "retrying").want(t, statusGood, "Redrive 1", "payments/b")
	f.redrives("-kind", "call", "-scope", "shop", "-parked-for", "rejected").want(t, statusGood, "Redrive 1", "payments/a")
	f.redrives("-scope", "stock").want(t, statusGood, "Redrive 2: each is tried again as a new message is") // messages, as ever
	r := f.run("parked", "list", "-kind", "call", "-sink", "payments", "-name", "a").want(t, statusGood, "payments/a")
	if strings.Contains(r.out, "payments/b") ||
		strings.Contains(r.out, "onlyonce parked redrive") ||
		!strings.Contains(r.out, "1 retrying\n") {
		t.Errorf("%s", r.out)
	}
}

func TestParkedShowCall(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.lists("payments")
	id := f.parks("a", "k", "retrying", "completion")
	f.exec(`update onlyonce.parked set response_status = 201, response_headers = E'A: 1\nB: 2'`)
	r := f.run("parked", "show", "-id", id).want(t, statusGood, "response status 201",
		"response bytes  14", "A: 1", "B: 2", "first attempt", "log id")
	if strings.Contains(r.out, "private answer") || strings.Contains(r.out, "body of a") {
		t.Errorf("bodies are shown:\n%s", r.out)
	}
	f.run("parked", "show", "-id", id, "-body").want(t, statusGood, "private answer", "body of a")
	r = f.run("parked", "show", "-id", id, "-json").want(t, statusGood, `"response":{"status":201,"headers":"A: 1\nB: 2","body_bytes":14}`,
		`"capture":false`)
	if strings.Contains(r.out, "private answer") {
		t.Errorf("%s", r.out)
	}
}
