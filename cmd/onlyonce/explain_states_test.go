package main

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/dedupe"
)

// keyOf is the stored key of an id in a scope.
func keyOf(scope, id string) string {
	return uuid.UUID(dedupe.Key{Scope: scope, ID: id}.Hash()).String()
}

// explained is one id, how it came there, and what a person has to be told first.
type explained struct {
	name  string
	setup string
	args  []string
	first string // the first sentence
	next  string // the next step, "" for none
}

// A person has an id of any kind, in any state: explain says first what became of it, and then the
// next step.
func TestExplainEachKindAndState(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(`insert into onlyonce.scopes (scope, topics, first_topic) values ('stock', '{orders}', 'orders')`)
	f.exec(`insert into onlyonce.sinks (name) values ('payments')`)
	claimed := func(id string) string {
		return `select onlyonce.claim_consumer(array['` + keyOf("stock", id) + `'::uuid], array[1::bigint]); `
	}
	message := func(id, state, reason string) string {
		settled := "null"
		if state == "resolved" || state == "discarded" {
			settled = "clock_timestamp()"
		}
		return claimed(id) + `insert into onlyonce.parked (kind, state, reason, error, attempts, scope, key, topic, partition, "offset",
			settled_at)
			values ('message', '` + state + `', '` + reason + `', 'no such article', 3, 'stock', '` +
			keyOf("stock", id) + `', 'orders', 0, 7, ` + settled + `); `
	}
	call := func(id, state, reason string) string {
		settled := "null"
		if state == "resolved" || state == "discarded" {
			settled = "clock_timestamp()"
		}
		return `insert into onlyonce.parked (kind, state, reason, error, attempts, scope, key, sink, lane, call_name, method, target,
			record_time, settled_at, row_id)
			values ('call', '` + state + `', '` + reason + `', 'status 422', 1, 'orders', '` + keyOf(
			"call",
			id,
		) + `', 'payments', 0, 'charge', 'POST', '/charges', clock_timestamp(), ` + settled + `,
			(select 900000 + count(*) from onlyonce.parked)); `
	}
	request := func(id, state, times string) string {
		return `do $$ begin set local session_replication_role = replica;
			insert into onlyonce.http_records (id, tenant, scope, fingerprint, token, state, keep, completed_at, expires_at)
			values ('` + uuid.UUID(dedupe.Key{Tenant: "shop", Scope: "http POST /payments", ID: id}.Hash()).String() +
			`', 'shop', 'http POST /payments', '\x00', gen_random_uuid(), '` + state + `', '48 h', ` + times +
			`); end $$`
	}
	for _, c := range []explained{
		{"message, applied", claimed("m-1"), []string{"m-1"}, "It was applied ", ""},
		{
			"message, parked for good",
			message("m-2", "waiting", "permanent"),
			[]string{"m-2"},
			"It is not applied: a consumer's transaction parked it ",
			"parked show",
		},
		{
			"message, tried again",
			message("m-3", "retrying", "failed"),
			[]string{"m-3"},
			"It is not applied: a consumer's transaction parked it ",
			"parked show",
		},
		{"message, behind another", message("m-4", "blocked", "behind"), []string{"m-4"}, "It is not applied: ", "parked show"},
		{"message, and another of its id", message("m-5", "waiting", "conflict"), []string{"m-5"}, "It was applied ", "parked show"},
		{
			"message, given up",
			message("m-6", "discarded", "permanent"),
			[]string{"m-6"},
			"It was not applied: a consumer's transaction parked it ",
			"",
		},
		{
			"message, redriven and applied",
			message("m-7", "resolved", "permanent"),
			[]string{"m-7"},
			"It was applied, at the latest at ",
			"",
		},
		{"message, crashed its process", message("m-8", "waiting", "crashed"), []string{"m-8"}, "It is not applied: ", "parked show"},
		{
			"call, tried again",
			call("c-1", "retrying", "failed"),
			[]string{keyOf("call", "c-1")},
			"It is a call to payments, and is not delivered: it is tried again.",
			"parked show",
		},
		{
			"call, refused",
			call("c-2", "waiting", "rejected"),
			[]string{keyOf("call", "c-2")},
			"It is a call to payments, and is not delivered: a person has to decide.",
			"parked show",
		},
		{
			"call, nobody knows",
			call("c-3", "reconcile", "window"),
			[]string{keyOf("call", "c-3")},
			"It is a call to payments, and is perhaps delivered: that is not known",
			"parked show",
		},
		{
			"call, behind another",
			call("c-4", "blocked", "behind"),
			[]string{keyOf("call", "c-4")},
			"It is a call to payments, and is not delivered: it waits behind another one",
			"parked show",
		},
		{
			"call, given up",
			call("c-5", "discarded", "rejected"),
			[]string{keyOf("call", "c-5")},
			"It is a call to payments, and is given up",
			"",
		},
		{
			"call, delivered after trouble",
			call("c-6", "resolved", "failed"),
			[]string{keyOf("call", "c-6")},
			"It is a call to payments, and is delivered.",
			"",
		},
		{
			"call, delivered with its answer",
			call("c-7", "resolved", "completion"),
			[]string{keyOf("call", "c-7")},
			"It is a call to payments, and is delivered. Its answer was captured",
			"",
		},
		{
			"request, answered",
			request("r-1", "completed", "clock_timestamp(), clock_timestamp() + interval '48 h'"),
			[]string{"r-1"},
			"It is the Idempotency-Key of POST /payments, tenant shop: answered at ",
			"",
		},
		{
			"request, left by its process",
			request("r-2", "running", "null, null"),
			[]string{"r-2"},
			"It is the Idempotency-Key of POST /payments, tenant shop: its request is left, since ",
			"request list",
		},
		{
			"request, a step is not known",
			request("r-3", "reconcile", "null, null"),
			[]string{"r-3"},
			"It is the Idempotency-Key of POST /payments, tenant shop: a step of its request has an unknown outcome",
			"request list",
		},
		{
			"event, set aside by a webhook",
			`insert into onlyonce.parked (kind, state, reason, error, scope, topic, event_id)
				values ('event', 'waiting', 'same-body', 'its body came before under another id', 'webhook/gh', 'webhook.gh', 'd-9')`,
			[]string{"d-9"},
			"It is parked as row ",
			"parked show",
		},
		{
			"event, recorded by a webhook",
			`do $$ begin
				perform onlyonce.receive_webhooks('gh', array[onlyonce.key('', 'webhook/gh', 'd-1')], array[1::bigint], null, null, null,
				null, null, '1 hour', null, '1s', '1s', '1s', '1s');
				perform onlyonce.seal();
				end $$`,
			[]string{"d-1", "-scope", "webhook/gh"},
			"Endpoint gh recorded it at ",
			"",
		},
		{"not known", "", []string{"x-1", "-scope", "stock"}, "It is not known", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := f.pool.Exec(t.Context(), c.setup, pgx.QueryExecModeSimpleProtocol); err != nil {
				t.Fatal(err)
			}
			out := f.run(append([]string{"explain"}, c.args...)...).out
			t.Logf("explain %s\n%s", strings.Join(c.args, " "), out)
			said := strings.Split(out, "\n")
			if strings.HasPrefix(said[0], "key ") {
				said = said[1:]
			}
			if !strings.HasPrefix(said[0], c.first) {
				t.Errorf("it says first: %s\nwant: %s", said[0], c.first)
			}
			_, next, _ := strings.Cut(out, "\nNext: onlyonce ")
			if !strings.HasPrefix(next, c.next) || (next == "") != (c.next == "") {
				t.Errorf("the next step is not %q:\n%s", c.next, out)
			}
		})
	}
}
