package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

func storedKey(tenant, scope, id string) string {
	return uuid.UUID(dedupe.Key{Tenant: tenant, Scope: scope, ID: id}.Hash()).String()
}

// explains runs explain -json.
func explains[T any](f *fixture, args ...string) (r T) {
	f.t.Helper()
	out := f.run(append([]string{"explain", "-json"}, args...)...).want(f.t, statusGood).lines(f.t, 0).out
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		f.t.Fatalf("%s: %v", out, err)
	}
	return r
}

// without fails the test if a text is there.
func (r result) without(t *testing.T, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if strings.Contains(r.out, text) {
			t.Errorf("%q is in\n%s", text, r.out)
		}
	}
}

func TestExplainKey(t *testing.T) {
	t.Parallel()
	seven := storedKey("", "stock", "a-1")
	segment := func(table string) string {
		return `insert into onlyonce_segments.` + table + ` values (onlyonce.key('', 'stock', 'a-1'), 0)`
	}
	const closed = `update onlyonce.rings set cur = 1, closed = '{0}' where name = 'consumer_keys';
		update onlyonce.segments set opened_at = '2026-01-01 00:00Z', closed_at = '2026-01-02 00:00Z', bound = '4611686018427387904'
		where ring = 'consumer_keys' and slot = 0;
		update onlyonce.segments set opened_at = '2026-01-02 00:00Z' where ring = 'consumer_keys' and slot = 1;`
	const within = `insert into onlyonce.scopes (scope, topics, copies, first_topic) values ('stock', '{orders,paid}', 'within', 'orders');`
	for name, c := range map[string]struct {
		setup   string
		args    []string
		want    []string
		without string
	}{
		"never": {
			"",
			nil,
			[]string{
				"key " + seven,
				`id "a-1", scope "stock"`,
				"no segment of the inbox holds it",
				"consumer_keys remembers at least 7d, and holds every key that was claimed in it within the last",
				"standard_keys remembers at least 7d",
				"a transaction that has not committed",
			},
			"fingerprint",
		},
		"mistyped": {
			`insert into onlyonce.scopes (scope, topics, copies, first_topic) values ('stocks', '{orders}', 'across', 'orders')`,
			nil,
			[]string{"no consumer and no webhook endpoint has that scope. There are: stocks."},
			"scope yet",
		},
		"never, and for ever": {
			`update onlyonce.rings set horizon = null`,
			nil,
			[]string{"consumer_keys remembers for ever, and holds every key that was claimed in it within the last"},
			"at least",
		},
		"current": {
			`select onlyonce.claim_consumer(array[onlyonce.key('', 'stock', 'a-1')], array[x'00ff'::bigint])`,
			nil,
			[]string{
				"is remembered",
				"A copy that comes now is a duplicate (remembered).",
				"onlyonce_segments.consumer_keys_0, current in ring consumer_keys",
				"claimed         after ",
				"fingerprint     00000000000000ff",
				", committed; its time is not known to Postgres",
				"the message's position",
			},
			"remembers",
		},
		"stored key": {`select onlyonce.claim_consumer(array[onlyonce.key('', 'stock', 'a-1')], array[0::bigint])`, []string{seven},
			[]string{"key " + seven + "\n", "fingerprint     none", "is remembered"}, "scope"},
		"of a tenant": {
			`select onlyonce.claim_standard(array[onlyonce.key('acct', 'stock', 'a-1')], array[1::bigint])`,
			[]string{"-tenant", "acct", "-scope", "stock", "a-1"},
			[]string{`tenant "acct"`, "standard_keys_0, current in ring standard_keys"},
			"",
		},
		"of another tenant": {
			`select onlyonce.claim_standard(array[onlyonce.key('acct', 'stock', 'a-1')], array[1::bigint])`,
			nil,
			[]string{"no segment"},
			"",
		},
		"in a replay": {
			`insert into onlyonce_segments.consumer_keys_0 values ('` + uuid.UUID(
				dedupe.Key{Scope: "stock", ID: "a-1", Replay: 2}.Hash(),
			).String() + `', 1)`,
			[]string{"a-1", "-scope", "stock", "-replay", "2"},
			[]string{"in replay 2", "is remembered"},
			"",
		},
		"within its topic": {
			within + `insert into onlyonce_segments.consumer_keys_0 values ('` +
				uuid.UUID(dedupe.Key{Scope: "stock", Topic: "paid", ID: "a-1"}.Hash()).String() + `', 1)`,
			[]string{"a-1", "-scope", "stock", "-topic", "paid"},
			[]string{`topic "paid"`, "is remembered"},
			"",
		},
		"of the topic that the scope began with": {
			within + `select onlyonce.claim_consumer(array[onlyonce.key('', 'stock', 'a-1')], array[1::bigint])`,
			[]string{"a-1", "-scope", "stock", "-topic", "orders"},
			[]string{"is remembered"},
			"topic",
		},
		"draining": {
			`update onlyonce.rings set cur = 1, draining = 0 where name = 'consumer_keys'; ` + segment("consumer_keys_0"),
			nil,
			[]string{"consumer_keys_0, draining in ring consumer_keys"},
			"",
		},
		"closed": {
			closed + segment("consumer_keys_0"),
			nil,
			[]string{
				"consumer_keys_0, closed in ring consumer_keys",
				"between 2026-01-01 00:00:00Z and 2026-01-02 00:00:00Z",
				", committed",
			},
			"no longer known",
		},
		"closed, and its number stands for another transaction": {
			closed + `update onlyonce.segments set bound = '4' where ring = 'consumer_keys' and slot = 0;` + segment("consumer_keys_0"),
			nil,
			[]string{"transaction     no longer known"},
			"committed",
		},
		"two segments": {
			`update onlyonce.rings set cur = 1, draining = 0 where name = 'consumer_keys';
				select onlyonce.claim_consumer(array[onlyonce.key('', 'stock', 'a-1')], array[0::bigint])`,
			nil,
			[]string{"consumer_keys_0, draining", "consumer_keys_1, current"},
			"",
		},
		"retired": {
			closed + `update onlyonce.rings set closed = '{}', retired = 0 where name = 'consumer_keys'; ` + segment("consumer_keys_0"),
			nil,
			[]string{
				"no longer asked for",
				"A copy that comes now is new.",
				"retired by ring consumer_keys: claims do not ask it any more",
				"consumer_keys remembers",
			},
			"is remembered",
		},
		"webhook": {
			`do $$ begin
				perform onlyonce.receive_webhooks('gh', array[onlyonce.key('', 'webhook/gh', 'a-1')], array[1::bigint], null, null, null,
				null, null, '1 hour', null, '1s', '1s', '1s', '1s');
				perform onlyonce.seal();
				end $$`,
			[]string{"a-1", "-scope", "webhook/gh"},
			[]string{"standard_keys_0, current", "Webhook: endpoint gh claimed it at 20"},
			"",
		},
		"webhook whose key was forgotten": {
			`do $$ begin
				perform onlyonce.receive_webhooks('gh', array[onlyonce.key('', 'webhook/gh', 'a-1')], array[1::bigint], null, null, null,
				null, null, '1 hour', null, '1s', '1s', '1s', '1s');
				perform onlyonce.seal();
				end $$;
				truncate onlyonce_segments.standard_keys_0`,
			[]string{"a-1", "-scope", "webhook/gh"},
			[]string{"no segment", "Webhook: endpoint gh"},
			"",
		},
		"conflict": {
			`insert into onlyonce.parked (kind, state, reason, error, scope, key, topic, partition, "offset") values
			('message', 'waiting', 'conflict', E'other bytes\nstack', 'stock', onlyonce.key('', 'stock', 'a-1'), 'orders', 0, 7),
			('message', 'resolved', 'failed', '', 'stock', onlyonce.key('', 'stock', 'a-1'), 'orders', 0, 8),
			('message', 'waiting', 'failed', '', 'stock', onlyonce.key('', 'stock', 'b'), 'orders', 0, 9)`,
			nil,
			[]string{"Parked: 2", "conflict", "orders/0@7", "orders/0@8", "other bytes"},
			"stack",
		},
		"request": {
			`select onlyonce.http_claim(onlyonce.key('acct', 'http POST /v1/charges', 'k'), 'acct', 'http POST /v1/charges', '',
				gen_random_uuid(), '2 days', '-1 second');
			insert into onlyonce.http_steps (record_id, name) select id, 'charge' from onlyonce.http_records`,
			[]string{"k", "-scope", "http POST /v1/charges", "-tenant", "acct"},
			[]string{
				"It is the Idempotency-Key of POST /v1/charges, tenant acct: its request is left",
				"HTTP request: left, since",
				"is not completed",
				"unknown outcome: charge",
			},
			"private",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			if c.setup != "" {
				f.exec(c.setup)
			}
			args := c.args
			if args == nil {
				args = []string{"a-1", "-scope", "stock"}
			}
			r := f.run(append([]string{"explain", "-all"}, args...)...).want(t, statusGood, c.want...).lines(t, 0)
			if c.without != "" {
				r.without(t, c.without)
			}
			explains[ops.KeyReport](f, args...)
		})
	}
}

// The answer lists the calls of the transaction that claimed a key, and says which of them is
// certainly this message's.
func TestExplainCalls(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.keyed("k", "a", "b")
	s.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		for _, id := range []string{"", "line-1"} {
			if err := outbox.Enqueue(ctx, tx, outbox.Call{
				Sink:   "payments",
				Name:   "charge",
				ID:     id,
				Target: "/",
				Body:   []byte("private"),
			}); err != nil {
				return err
			}
		}
		return effect(ctx, tx, m)
	}, nil)
	s.reaches(2)
	r := explains[ops.KeyReport](s.fixture, "a", "-scope", "stock")
	good := len(r.Claims) == 1 &&
		r.Claimed &&
		r.Claims[0].Transaction != nil &&
		len(r.Calls) >= 2
	if !good {
		t.Fatalf("%+v", r)
	}
	derived := 0
	for _, c := range r.Calls {
		if c.State != "pending" || c.Sink != "payments" {
			t.Errorf("%+v", c)
		}
		if c.Derived != nil {
			derived++
		}
	}
	if derived != 1 {
		t.Errorf("%d calls are this message's for certain, want 1: %+v", derived, r.Calls)
	}
	s.run("explain", "a", "-scope", "stock").want(t, statusGood, "Its calls: 1; ", "charge", "pending", "yes").without(t, "private")
	s.run("explain", "a", "-scope", "stock", "-all").want(t, statusGood, "Calls of that transaction",
		"not known", "which of the transaction's calls")
	s.run("explain", "a", "-scope", "stock", "-all").want(t, statusGood).without(t, "savepoint")
	short := s.run("explain", "a", "-scope", "stock").want(
		t,
		statusGood,
		fmt.Sprintf("; %d more of the same transaction, which may be of other messages: -all shows them\n", len(r.Calls)-1),
	)
	whole := s.run("explain", "a", "-scope", "stock", "-all").want(t, statusGood)
	whole.without(t, "-all shows")
	few := strings.Count(short.out, "  charge  ")
	all := strings.Count(whole.out, "  charge  ")
	if few != 1 ||
		all != len(r.Calls) ||
		r.Calls[0].Derived == nil {
		t.Errorf("%d and %d calls of %d:\n%s\n%s", few, all, len(r.Calls), short.out, whole.out)
	}
	if r := explains[ops.KeyReport](s.fixture, storedKey("", "stock", "a")); len(r.Calls) < 2 || r.Calls[0].Derived != nil {
		t.Errorf("of a stored key nothing is derived: %+v", r.Calls)
	}

	call := r.Calls[0].Key
	s.run("explain", call).want(t, statusGood, "It is the key of a call", "payments", "pending").without(t, "private")
	s.lists("payments")
	s.delivers("payments", r.Calls[len(r.Calls)-1].ID)
	s.run("explain", call).want(t, statusGood, "delivered")
}

func TestExplainParkedCall(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.lists("payments")
	f.enqueues("payments", "", "one")
	f.park("one", "waiting", "rejected")
	key := one[string](f, `select key::text from onlyonce.outbox_log`)
	f.run("explain", key).want(t, statusGood, "It is the key of a call", "waiting", "Parked: 1", "rejected", "payments/one").without(
		t,
		"private",
	)
}

// The answer has the commit's time if the server records it. The search for what a receiver
// recorded is bounded.
func TestExplainCommitTime(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Server(t, map[string]string{"track_commit_timestamp": "on"}))
	f := &fixture{session{t: t, url: pool.Config().ConnString()}, pool}
	f.run("migrate").want(t, statusGood)
	f.exec(`select onlyonce.claim_consumer(array[onlyonce.key('', 'stock', 'a-1')], array[0::bigint])`)
	r := explains[ops.KeyReport](f, "a-1", "-scope", "stock")
	if len(r.Claims) != 1 || r.Claims[0].Transaction.CommittedAt == nil || *r.Claims[0].Transaction.Status != "committed" {
		t.Fatalf("%+v", r.Claims)
	}
	if !r.Claims[0].Transaction.CommittedAt.Equal(one[time.Time](
		f,
		`select pg_xact_commit_timestamp(xmin) from onlyonce_segments.consumer_keys_0`,
	)) {
		t.Errorf("%+v", r.Claims)
	}
	f.run("explain", "a-1", "-scope", "stock", "-all").want(t, statusGood, ", committed at 20").without(t, "not known to Postgres")

	// Frozen rows keep their number, and rows that were written frozen have none.
	f.exec(`vacuum freeze onlyonce_segments.consumer_keys_0`)
	f.run("explain", "a-1", "-scope", "stock", "-all").want(t, statusGood, ", committed at 20")

	f.exec(`alter table onlyonce.webhook_ids rename to webhook_ids_rows; alter table onlyonce.webhook_ids_rows disable trigger sealed;
		insert into onlyonce.webhook_ids_rows values ('gh', onlyonce.key('', 'stock', 'a-1'))`)
	f.exec(`create function slow(t timestamptz) returns timestamptz language plpgsql stable as $$ begin perform pg_sleep(3600);
		return t;
		end $$`)
	f.exec(`create view onlyonce.webhook_ids as select endpoint, key, slow(seen_at) as seen_at from onlyonce.webhook_ids_rows`)
	f.count = 50 * time.Millisecond
	f.run("explain", "a-1", "-scope", "stock", "-all").want(t, statusGood, "the search took too long")
	if r := explains[ops.KeyReport](f, "a-1", "-scope", "stock"); r.Webhooks != nil {
		t.Errorf("%+v", r.Webhooks)
	}
}

func TestExplainPosition(t *testing.T) {
	t.Parallel()
	const cursor = `with l as (insert into onlyonce.leases (name) values ('cursor/stock/orders/0') returning id)
		insert into onlyonce.cursors (id, scope, topic, partition, start_offset, start_policy, run_start)
		select id, 'stock', 'orders', 0, 10, 'earliest', 10 from l;
		`
	// A batch from 10 to 20, as an engine of position 20 leaves it.
	const batch = cursor + `do $$ declare c bigint;
		begin select id into c from onlyonce.cursors;
		perform set_config('onlyonce.fenced', pg_current_xact_id()::text, true);
		insert into onlyonce.progress (cursor_id, run, from_offset, next_offset) values (c, 0, 10, 20); perform onlyonce.seal(); end $$; `
	for name, c := range map[string]struct {
		setup, offset string
		word          string
		want          []string
	}{
		"nobody": {"", "5", "", []string{"This database has no cursor for it", "keys are not stored by position"}},
		"handled": {
			batch,
			"15",
			"handled",
			[]string{
				"Scope stock, at 20: handled: it was applied, or was a duplicate, or was parked",
				"in the batch from 10 to 20, of transaction ",
				"committed",
				"control records",
			},
		},
		"ahead": {batch, "20", "ahead", []string{"it is still to be handled"}},
		"tried alone": {
			batch + `insert into onlyonce.attempts select id, 20, 3, 0 from onlyonce.cursors`,
			"20",
			"ahead",
			[]string{"it is tried alone, and was tried 3 times"},
		},
		"retired": {
			batch + `update onlyonce.cursors set retired_at = now()`,
			"20",
			"ahead",
			[]string{"at 20 (retired)", "handles nothing any more"},
		},
		"before start": {batch, "9", "before-start", []string{"began above it, and never handled it"}},
		"adopted": {
			strings.Replace(batch, "'earliest'", "'adopted'", 1),
			"9",
			"before-start",
			[]string{"an operator set the cursor's start above it", "another database, or an earlier cursor " +
				"in this one"},
		},
		"committed": {
			strings.Replace(batch, "'earliest'", "'committed'", 1),
			"9",
			"before-start",
			[]string{"at the group's offset", "the program that committed that offset may have"},
		},
		"pruned": {
			cursor + `update onlyonce.cursors set run_start = 5; insert into onlyonce.pauses (scope, reason) values ('stock', 'x')`,
			"4",
			"before-start",
			[]string{"(paused)"},
		},
		"pruned batch": {
			batch + `delete from onlyonce.progress;
				do $$ begin perform set_config('onlyonce.fenced', pg_current_xact_id()::text, true);
				insert into onlyonce.progress (cursor_id, run, from_offset, next_offset) select id, 0, 20, 30 from onlyonce.cursors;
				perform onlyonce.seal();
				end $$`,
			"15",
			"handled",
			[]string{"not on record any more"},
		},
		"earlier run": {
			batch + `update onlyonce.cursors set run = 1, run_start = 40`,
			"15",
			"earlier-run",
			[]string{"the position was set to 40 since"},
		},
		"replayed later": {
			batch + `update onlyonce.cursors set run = 1, run_start = 12, replay_no = 3, replay_until = 18, replay_resume = 20`,
			"15",
			"replaying",
			[]string{"at 12 (replay 3 to 18)", "once more"},
		},
		"replayed": {
			batch + `update onlyonce.cursors set run = 1, run_start = 12, replay_no = 3, replay_until = 18, replay_resume = 20;
				do $$ begin perform set_config('onlyonce.fenced', pg_current_xact_id()::text, true);
				insert into onlyonce.progress (cursor_id, run, from_offset, next_offset) select id, 1, 12, 16 from onlyonce.cursors;
				perform onlyonce.seal();
				end $$`,
			"15",
			"handled",
			[]string{"handled once more in replay 3", "in the batch from 12 to 16"},
		},
		"not replayed": {
			batch + `update onlyonce.cursors set run = 1, run_start = 12, replay_no = 3, replay_until = 18, replay_resume = 20`,
			"19",
			"handled",
			[]string{"is not part of that"},
		},
		"behind replay": {
			batch + `update onlyonce.cursors set run = 1, run_start = 12, replay_no = 3, replay_until = 18, replay_resume = 20`,
			"20",
			"ahead",
			[]string{"still to be handled"},
		},
		"parked": {
			batch + `insert into onlyonce.parked (kind, state, reason, scope, topic, partition, "offset")
				values ('message', 'waiting', 'failed', 'stock', 'orders', 0, 15),
				('message', 'waiting', 'failed', 'stock', 'orders', 0, 16)`,
			"15",
			"handled",
			[]string{"Parked: 1", "orders/0@15"},
		},
		"event": {
			`insert into onlyonce.streams (topic, partitions) values ('orders', 1);
				select onlyonce.append_events('{orders}', '{0}', '{acct}', '{ev-1}', '{k}', '{0}', '{}', '{}', '{private}')`,
			"0",
			"",
			[]string{"Event ev-1, tenant acct, appended at 20"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			if c.setup != "" {
				f.exec(c.setup)
			}
			args := []string{"-topic", "orders", "-partition", "0", "-offset", c.offset}
			f.run(append([]string{"explain"}, args...)...).want(t, statusGood, c.want...).lines(t, 0).without(t, "private")
			r := explains[ops.PositionReport](f, args...)
			wrong := c.word == "" && len(r.Cursors) != 0 ||
				c.word != "" && (len(r.Cursors) != 1 || r.Cursors[0].Offset != c.word)
			if wrong {
				t.Errorf("%+v, want %s", r.Cursors, c.word)
			}
			if r := explains[ops.PositionReport](f, append(args, "-scope", "other")...); len(r.Cursors) != 0 || len(r.Parked) != 0 {
				t.Errorf("of another scope: %+v", r)
			}
		})
	}
}

// A consumer without ids derives calls from positions, and so a position leads to its calls.
func TestExplainCallsOfAPosition(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.log.Append(0, "a")
	s.log.Append(0, "b")
	s.start(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		return outbox.Enqueue(ctx, tx, outbox.Call{Sink: "payments", Name: "charge", Target: "/"})
	}, func(c *consumer.Config) {
		c.Key = nil
		c.PositionsOnly = true
	})
	s.reaches(2)
	r := explains[ops.PositionReport](s.fixture, "-topic", "orders", "-partition", "0", "-offset", "1")
	if len(r.Cursors) != 1 || r.Cursors[0].Moved == nil || len(r.Cursors[0].Calls) == 0 {
		t.Fatalf("%+v", r)
	}
	derived := 0
	for _, c := range r.Cursors[0].Calls {
		if c.Derived != nil {
			derived++
		}
	}
	if derived != 1 {
		t.Errorf("%d calls are of this position for certain: %+v", derived, r.Cursors[0].Calls)
	}
}

// If another schema has other segments, explain describes them as the migrations make them.
func TestExplainKnowsEverySegment(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, table := range []string{"consumer_keys_0", "consumer_keys_9", "standard_keys_0", "standard_keys_9"} {
		f.exec(`insert into onlyonce_segments.` + table + ` values (onlyonce.key('', 's', '` + table + `'), 1)`)
		if r := explains[ops.KeyReport](f, table, "-scope", "s"); len(r.Claims) == 0 || r.Claims[0].Segment != "onlyonce_segments."+table {
			t.Errorf("%s: %+v", table, r.Claims)
		}
	}
}
