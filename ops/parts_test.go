package ops_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// part inserts what a part of a process reports. At: its age.
const part = `insert into onlyonce.owners (
  id,
  part,
  scope,
  host,
  pid,
  seen_at,
  partitions,
  faults
)
 values (
   gen_random_uuid(),
   $1,
   $2,
   'h',
   7,
   clock_timestamp() - $3::interval,
   '[]',
   $4::jsonb
 )`

// call parks a call to the sink payments, which was enqueued so long ago. At: state, reason, age,
// error, when it is due.
const call = `insert into onlyonce.parked (
  kind,
  state,
  reason,
  scope,
  sink,
  lane,
  call_name,
  method,
  target,
  record_time,
  error,
  next_attempt_at,
  settled_at
)
 values (
   'call',
   $1,
   $2,
   'checkout',
   'payments',
   0,
   'charge',
   'POST',
   '/charges',
   clock_timestamp() - $3::interval,
   $4,
   clock_timestamp() + $5::interval,
   case when $1 in ('resolved', 'discarded') then clock_timestamp() end
 )`

// S3: relays, receivers, endpoints and layers say what keeps them from their work, and one that was
// killed is missed until another one like it runs.
func TestS3Parts(t *testing.T) {
	t.Parallel()
	fault := func(kind, text string) string {
		return fmt.Sprintf(`[{"kind": %q, "for": 61, "text": %q}]`, kind, text)
	}
	type reported struct{ part, scope, age, faults string }
	down := fault("remote", "4 attempts in a row were not delivered; the last: status 500")
	for name, c := range map[string]struct {
		parts []reported
		setup string
		want  []string
	}{
		"all is well": {[]reported{{"relay", "payments", "1 s", `[]`}, {"layer", "", "2 s", `[]`}}, "", nil},
		"a remote is down": {[]reported{{"relay", "payments", "1 s", down}, {"relay", "payments", "0 s", down}}, "",
			[]string{
				"cannot deliver: sink payments, 2 calls not delivered, the oldest for 6m: 4 attempts in a " +
					"row were not delivered; the last: status 500 (2 processes, for 1m2s)",
			}},
		"a remote without calls": {[]reported{{"relay", "payments", "1 s", down}}, `delete from onlyonce.parked`, nil},
		"a sink that is paused": {
			[]reported{{"relay", "payments", "1 s", down}},
			`update onlyonce.sinks set paused_at = clock_timestamp(), paused_by = 'ann', pause_reason = 'why'`,
			nil,
		},
		"calls are refused": {
			[]reported{{"relay", "payments", "1 s", fault("refused", "status 401")}},
			"",
			[]string{"calls are refused: sink payments, 1 process, for 1m2s: status 401"},
		},
		"a broker is away": {
			[]reported{{"receiver", "orders", "1 s", fault("receive", "no route")}},
			"",
			[]string{"cannot receive: receiver of queue orders, 1 process, for 1m2s: no route"},
		},
		"a queue is full": {
			[]reported{{"receiver", "orders", "1 s", fault("full", "stream ORDERS has its 3 messages")}},
			"",
			[]string{"the queue is full: receiver of queue orders, 1 process, for 1m2s: stream ORDERS has its 3 messages"},
		},
		"an endpoint stores not": {
			[]reported{{"endpoint", "stripe", "1 s", fault("store", "full")}},
			"",
			[]string{"cannot store: endpoint stripe, 1 process, for 1m2s: full"},
		},
		"killed": {
			[]reported{{"receiver", "orders", "20 s", `[]`}},
			"",
			[]string{
				"not running: receiver of queue orders was killed, or cannot reach this database: the last report is of h, pid 7, 20s ago",
			},
		},
		"killed, another runs": {[]reported{{"receiver", "orders", "20 s", down}, {"receiver", "orders", "3 s", `[]`}}, "", nil},
		"killed, others run": {
			[]reported{{"receiver", "orders", "20 s", `[]`}, {"receiver", "mail", "3 s", `[]`}},
			"",
			[]string{"not running: receiver of queue orders"},
		},
		"a relay is killed": {
			[]reported{{"relay", "payments", "3 h", down}},
			"",
			[]string{"not running: relay of sink payments was killed"},
		},
		"of the future": {[]reported{{"layer", "", "-1 h", `[]`}}, "", nil},
		"a secret is wrong": {
			nil,
			`
insert into onlyonce.http_fingerprint_keys (id, check_value, refused_at)
  values (3, '\x00', clock_timestamp() - interval '1 min')`,
			[]string{"wrong secret: HTTP layer: a process has another secret under the id 3 of FingerprintKeys"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.DB(t)
			exec(t, pool, `insert into onlyonce.sinks (name) values ('payments')`)
			exec(t, pool, `insert into onlyonce.leases (name) values ('x') returning id`)
			exec(
				t,
				pool,
				`
with made as (insert into onlyonce.sink_lanes (sink, lane, id) select 'payments', 0, id from onlyonce.leases returning id)
insert into onlyonce.lane_cursors (id, prev, target) select id, pg_current_snapshot(), pg_current_snapshot() from made`,
			)
			exec(t, pool, call, "retrying", "failed", "6 min", "status 500", "1 min")
			exec(t, pool, call, "blocked", "behind", "5 min", "", "1 min")
			for _, p := range c.parts {
				exec(t, pool, part, p.part, p.scope, p.age, p.faults)
			}
			if c.setup != "" {
				exec(t, pool, c.setup)
			}
			r, err := ops.Status(t.Context(), pool, ops.StatusQuestion{})
			if err != nil {
				t.Fatal(err)
			}
			for _, got := range wantFaults(t, r.Faults, c.want) {
				if !slices.ContainsFunc(r.Needs, func(n ops.Need) bool { return n.Text == got && n.Remedy != "" }) {
					t.Errorf("no need with a remedy says %q: %+v", got, r.Needs)
				}
			}
		})
	}
}

// S3: calls that are not delivered count wherever they wait, with the age of the oldest, and those
// that wait for a person, for their time, or for nothing do not.
func TestS3UndeliveredCalls(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	exec(t, pool, `insert into onlyonce.sinks (name) values ('payments'), ('mail')`)
	for _, c := range [][]any{
		{"retrying", "failed", "7 min", "status 500", "1 min"},
		{"retrying", "failed", "1 min", "status 502", "1 min"},
		{"retrying", "cut", "2 min", "", "1 min"},
		{"retrying", "rate", "2 min", "", "1 min"},
		{"blocked", "behind", "8 min", "", "1 min"},
		{"retrying", "scheduled", "3 h", "", "-10 min"}, // its time has come
		{"retrying", "scheduled", "3 h", "", "1 h"},
		{"retrying", "completion", "4 h", "the database is away", "1 min"},
		{"waiting", "rejected", "4 h", "status 422", "1 min"},
		{"reconcile", "window", "4 h", "no answer", "1 min"},
		{"resolved", "failed", "4 h", "", "1 min"},
	} {
		exec(t, pool, call, c...)
	}
	r, err := ops.Status(t.Context(), pool, ops.StatusQuestion{})
	if err != nil {
		t.Fatal(err)
	}
	if !r.OutboxCounted || len(r.Outbox) != 1 {
		t.Fatalf("%+v", r.Outbox)
	}
	o := r.Outbox[0]
	good := o.Sink == "payments" &&
		o.Count == 6 &&
		o.Log == 0 &&
		o.Retrying == 5 &&
		o.Blocked == 1
	if !good {
		t.Errorf("%+v", o)
	}
	if o.OldestAgeSeconds == nil || *o.OldestAgeSeconds < 600 || *o.OldestAgeSeconds > 3600 {
		t.Errorf("the oldest waits for %v", o.OldestAgeSeconds)
	}
	if o.LastError == nil || *o.LastError != "status 500" {
		t.Errorf("the last answer is %v", o.LastError)
	}
	needs := slices.ContainsFunc(r.Needs, func(n ops.Need) bool {
		return strings.HasPrefix(n.Text, "no relay: sink payments, 6 calls not delivered, the oldest for 10m")
	})
	if !needs {
		t.Errorf("%+v", r.Needs)
	}
}
