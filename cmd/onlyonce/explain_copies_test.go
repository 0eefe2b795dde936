package main

import (
	"reflect"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/ops"
)

// K3, K7: a copy is judged separately for the claims in each ring, because the rings do not know
// each other's keys. A parked row counts for both.
func TestExplainCopies(t *testing.T) {
	t.Parallel()
	const key = `onlyonce.key('', 'stock', 'a-1')`
	parked := func(kind, state, reason, key string) string {
		return `insert into onlyonce.parked (kind, state, reason, scope, key, settled_at)
			values ('` + kind + `', '` + state + `', '` + reason + `', 'stock', ` + key +
			`, case when '` + state + `' in ('resolved', 'discarded') then now() end); `
	}
	const enqueued = `select onlyonce.enqueue_calls(array[0::smallint], array[` + key + `], array[null::uuid],
		array['payments'], array[''], array['shop'], array['charge'],
		array['POST'], array['/'], array[''], array[null::text], array[''::bytea], array[null::timestamptz], array[null::timestamptz],
		array[false], array[false], array[false]);
		`
	for name, c := range map[string]struct {
		setup      string
		args       []string
		log, clock string // why a copy is a duplicate; empty: it is new
		want       []string
		without    string
	}{
		"never": {"", nil, "", "", []string{"A copy that comes now is new."}, "a duplicate"},
		"a consumer's": {
			`select onlyonce.claim_consumer(array[` + key + `], array[0::bigint])`,
			nil,
			"remembered",
			"",
			[]string{"is a duplicate (remembered)."},
			"",
		},
		"dedupe.Claim's": {
			`select onlyonce.claim_standard(array[` + key + `], array[0::bigint])`,
			nil,
			"",
			"remembered",
			[]string{"is new in consumer_keys, and a duplicate in standard_keys (remembered)."},
			"",
		},
		"forgotten, and parked": {
			parked("message", "waiting", "exhausted", key),
			nil,
			"parked",
			"parked",
			[]string{"no segment", "is a duplicate (parked)."},
			"is new",
		},
		"retired, and parked": {
			`insert into onlyonce_segments.consumer_keys_0 values (` + key + `, 0);
				update onlyonce.rings set cur = 1, retired = 0 where name = 'consumer_keys';
				` + parked("message", "blocked", "behind", key),
			nil,
			"parked",
			"parked",
			[]string{"no longer asked for."},
			"is new",
		},
		"parked event": {parked("event", "retrying", "failed", key), nil, "parked", "parked", nil, "is new"},
		"settled": {
			parked("message", "resolved", "failed", key) + parked("event", "discarded", "failed", key),
			nil,
			"",
			"",
			[]string{"Parked: 2"},
			"a duplicate",
		},
		"conflict":  {parked("message", "waiting", "conflict", key), nil, "", "", []string{"Parked: 1"}, "a duplicate"},
		"another's": {parked("message", "waiting", "failed", "onlyonce.key('', 'stock', 'b')"), nil, "", "", nil, "a duplicate"},
		"held and parked": {
			`select onlyonce.claim_consumer(array[` + key + `], array[0::bigint]); ` + parked("message", "waiting", "failed", key),
			nil,
			"remembered",
			"parked",
			nil,
			"is new",
		},
		"in a replay": {
			parked("message", "waiting", "failed", key),
			[]string{"a-1", "-scope", "stock", "-replay", "2"},
			"parked",
			"",
			nil,
			"",
		},
		"call":         {enqueued, nil, "", "stored", []string{"is a duplicate (stored)."}, "in consumer_keys"},
		"parked call":  {parked("call", "reconcile", "window", key), nil, "", "stored", nil, "in consumer_keys"},
		"settled call": {parked("call", "discarded", "rejected", key), nil, "", "", nil, "in consumer_keys"},
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
			r := f.run(append([]string{"explain"}, args...)...).want(t, statusGood, c.want...)
			if c.without != "" {
				r.without(t, c.without)
			}
			want := []ops.Copy{{Ring: "consumer_keys", Duplicate: c.log != ""}, {Ring: "standard_keys", Duplicate: c.clock != ""}}
			for i, because := range []string{c.log, c.clock} {
				if because != "" {
					want[i].Because = &because
				}
			}
			if got := explains[ops.KeyReport](f, args...).Copies; !reflect.DeepEqual(got, want) {
				t.Errorf("%s, want %s", said(got), said(want))
			}
			// What is said is what the functions do that claim. (A replay's key is looked up by the
			// consumer besides; a call is found by enqueue_calls.)
			if c.args != nil || c.clock == "stored" {
				return
			}
			hash := uuid.UUID(dedupe.Key{Scope: "stock", ID: "a-1"}.Hash()).String()
			for i, function := range []string{"claim_consumer", "claim_standard"} {
				if n := one[int16](f, `select (onlyonce.`+function+`(array[$1::uuid], array[0::bigint]))[1]`,
					hash); (n == 1) != want[i].Duplicate {
					t.Errorf("%s says %d", function, n)
				}
			}
		})
	}
}

func said(copies []ops.Copy) string {
	var all []string
	for _, c := range copies {
		because := "new"
		if c.Because != nil {
			because = *c.Because
		}
		all = append(all, c.Ring+": "+because)
	}
	return strings.Join(all, ", ")
}

// A claim within a savepoint bears the number of the savepoint, so the transaction's calls are not
// found by it: the answer says that it does not know.
func TestExplainClaimInASavepoint(t *testing.T) {
	t.Parallel()
	const unknown = "if it claimed the key within a savepoint"
	f := newFixture(t)
	f.exec(`do $$ begin
		begin perform onlyonce.claim_standard(array[onlyonce.key('', 'stock', 'a-1')], array[0::bigint]);
		exception when division_by_zero then null;
		end;
		perform onlyonce.enqueue_calls(array[0::smallint], array[onlyonce.key('', 'payments', 'a-1')], array[null::uuid],
		array['payments'], array[''], array['stock'], array['charge'],
			array['POST'], array['/'], array[''], array[null::text], array[''::bytea], array[null::timestamptz], array[null::timestamptz],
			array[false], array[false], array[false]);
		perform onlyonce.claim_standard(array[onlyonce.key('', 'stock', 'a-2')], array[0::bigint]);
	end $$`)
	f.run("explain", "a-1", "-scope", "stock", "-all").want(t, statusGood, unknown).without(t, "Calls of that transaction")
	if r := explains[ops.KeyReport](f, "a-1", "-scope", "stock"); len(r.Calls) != 0 ||
		!strings.Contains(strings.Join(r.NotKnown, "\n"), unknown) {
		t.Errorf("%+v", r)
	}
	f.run("explain", "a-2", "-scope", "stock", "-all").want(t, statusGood, "Calls of that transaction: 1").without(t, unknown)
}
