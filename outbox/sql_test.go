package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// Every statement is accepted by a real server.
func TestStatementsPrepare(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	conn, err := r.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for name, sql := range outbox.Statements {
		if _, err := conn.Conn().Prepare(t.Context(), name, sql); err != nil {
			t.Errorf("%s: %v\n%s", name, err, sql)
		}
	}
}

// hot are the statements that run for each chunk and each poll. They are planned as generic plans,
// with the settings under which they run.
var hot = map[string]struct {
	args    string
	indexes []string
}{
	"poll lanes":    {`'payments', 'relays/payments/'`, []string{"leases_name_key"}},
	"poll work":     {`'payments', '{0,1,2,3}', true, '{0,0,0,0}'`, []string{"batches_%d_sink_lane_xid_id_idx", "parked_calls_due"}},
	"first batches": {`%lane, 0, 0, 0, 1000, 64`, []string{"batches_%d_sink_lane_xid_id_idx"}},
	"collect":       {`%lane, 0, 7, 1, 1000`, []string{"batches_%d_sink_lane_xid_id_idx"}},
	"fetch":         {`%lane, 0, '{"(0,1)","(0,2)"}'`, nil},
	"park": {
		`'{1}', '{700}', '{1}', '{1}', '{t}', '{t}', '{retrying}', '{failed}', '{no}', '{1}', '{null}', '{null}', '{null}', '{f}', ` +
			`'payments', 0, false`,
		[]string{"batches_%d_sink_lane_xid_id_idx", "parked_calls_key", "parked_first_key"},
	},
	"pick": {
		`'payments', 0, '{acme}', '{17}', false, 8, '{}', '{}', '{}', true, '{tenant acme,key a:}', '{2,1}', '23 hours', '30 seconds'`,
		[]string{"parked_calls_due", "parked_pkey", "parked_waits"},
	},
	"set aside": {`'payments', 0, 1000, '{acme}', true, '{17}', '{}', '{}', '{key a:}'`, []string{"parked_calls_due", "parked_pkey"}},
	"waiting":   {`'payments', '', -1`, []string{"parked_waits"}},
	"next":      {`'payments', 0, '{}', '{}', '{}', true`, []string{"parked_calls_due"}},
	"settle": {
		`false, '{1,3}', '{1,2}', array[gen_random_uuid(), gen_random_uuid()], '{1,1}', '{false,true}', '{false,false}', '{false,false}',
			'{false,false}', '{retrying,waiting}', '{failed,rejected}', '{a,b}', '{1000,null}', '{null,null}', '{null,null}',
			'{null,null}', '{"",key a:}'`,
		[]string{"parked_key"},
	},
	"purge": {`'payments', '7 days', 1000, '1 day'`, []string{"parked_settled", "parked_pkey"}},
}

// The hot statements find their rows by index, whatever the parameters, even if they were planned
// while the tables were empty: a session keeps such a plan for hours (O2, T13).
func TestPlans(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"empty", "full", "full and not analyzed"} {
		t.Run(state, func(t *testing.T) {
			r := newRig(t)
			r.exec(outbox.Statements["make lanes"], "payments", nil, names.Lanes("payments").List(16))
			if state != "empty" {
				r.exec(`
     insert into onlyonce.batches (
       slot,
       lane,
       n,
       bytes,
       keys,
       sink,
       tenant,
       scope,
       name,
       method,
       target,
       header,
       body
     )
     select 0,
            n % 16,
            1,
            0,
            array[gen_random_uuid()],
            case when n % 10 = 0 then 'mail' else 'payments' end,
            '',
            '',
            'charge',
            'POST',
            '',
            '',
            ''
       from generate_series(1, 20000) n`)
				r.exec(`
     insert into onlyonce.parked (
       kind,
       state,
       reason,
       scope,
       key,
       sink,
       lane,
       row_id,
       next_attempt_at,
       settled_at
     )
     select 'call',
            case when n % 2 = 0 then 'retrying' else 'resolved' end,
            'failed',
            '',
            gen_random_uuid(),
            'payments',
            n % 16,
            n,
            case when n % 2 = 0 then clock_timestamp() + n * interval '1 second' end,
            case when n % 2 = 1 then clock_timestamp() end
       from generate_series(1, 20000) n`)
			}
			if state != "full and not analyzed" {
				r.exec(`analyze`)
			}
			lane := one[int64](r, `select id from onlyonce.lanes where lane = 3`)
			for name, c := range hot {
				sql := outbox.Statements[name]
				args := strings.ReplaceAll(c.args, "%lane", fmt.Sprint(lane))
				if plan := pgtest.GenericPlan(t, r.pool, sql, args); strings.Contains(plan, "JIT:") {
					t.Errorf("%s is compiled, which takes a second:\n%s", name, plan)
				}
				plan := pgtest.GenericPlan(t, r.pool, sql, args, "enable_seqscan = off")
				for _, index := range c.indexes {
					index = strings.ReplaceAll(index, "%d", "0")
					if !strings.Contains(plan, "using "+index) && !strings.Contains(plan, "on "+index) {
						t.Errorf("%s does not use %s:\n%s", name, index, plan)
					}
				}
				if pgtest.ReadsAll(plan, "batches", "parked") || strings.Contains(plan, "Join Filter: (p.id = ") {
					t.Errorf("%s reads a whole table or index, or compares each row with each:\n%s", name, plan)
				}
				switch name {
				case "fetch":
					if !strings.Contains(plan, "Tid Scan on batches") {
						t.Errorf("fetch does not read rows from where they lie:\n%s", plan)
					}
				case "first batches", "collect":
					if !strings.Contains(plan, "xid >= ") || !strings.Contains(plan, "xid = x.x") {
						t.Errorf("%s does not begin where the pass begins:\n%s", name, plan)
					}
				case "poll lanes":
					if !strings.Contains(plan, "name >= ") || !strings.Contains(plan, "name < ") {
						t.Errorf("poll lanes reads the names of all leases:\n%s", plan)
					}
				case "pick":
					if n := dueScans(plan); n == 0 || n != strings.Count(plan, "using parked_calls_due") {
						t.Errorf("pick does not stop at the first row that is not due:\n%s", plan)
					}
				}
			}
		})
	}
}

// dueScans returns how many conditions of indexes begin after a due time and end at one. Versions
// of PostgreSQL print the times in several ways.
func dueScans(plan string) (n int) {
	for line := range strings.Lines(plan) {
		_, cond, _ := strings.Cut(line, "Index Cond: ")
		if strings.Contains(cond, "next_attempt_at > ") && strings.Contains(cond, "next_attempt_at <= ") {
			n++
		}
	}
	return n
}

// The fence's settings hold for all of its transaction, for example sequential scans being off.
func TestFenceForbidsSequentialScans(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`insert into onlyonce.leases (name, epoch, nonce) values ('relay/x', 1, '00000000-0000-4000-8000-000000000001')`)
	err := pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(
			t.Context(),
			outbox.Statements["fence"],
			one[int64](r, `select id from onlyonce.leases`),
			1,
			"00000000-0000-4000-8000-000000000001",
			"60000",
			"60000",
			"60000",
		)
		if err != nil {
			return err
		}
		var got string
		if err := tx.QueryRow(t.Context(), `select current_setting('enable_seqscan')`).Scan(&got); err != nil || got != "off" {
			t.Errorf("enable_seqscan is %s: %v", got, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// If a session does not wait for its commits to be flushed, the relay's journal waits all the same.
// Other values of the setting stay as they are (O3).
func TestFenceFlushes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`insert into onlyonce.leases (name, epoch, nonce) values ('relay/x', 1, '00000000-0000-4000-8000-000000000001')`)
	for given, want := range map[string]string{"off": "local", "on": "on", "remote_apply": "remote_apply", "local": "local"} {
		tx, err := r.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), `set local synchronous_commit = `+given); err != nil {
			t.Fatal(err)
		}
		var got string
		_, err = tx.Exec(
			t.Context(),
			outbox.Statements["fence"],
			one[int64](r, `select id from onlyonce.leases`),
			1,
			"00000000-0000-4000-8000-000000000001",
			"100",
			"60000",
			"60000",
		)
		if err == nil {
			err = tx.QueryRow(t.Context(), `select current_setting('synchronous_commit') || current_setting('lock_timeout')`).Scan(&got)
		}
		if err != nil || got != want+"100ms" {
			t.Errorf("%s became %s, want %s: %v", given, got, want, err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// The relay runs without prepared statements (PgBouncer in transaction mode, old versions), and on
// a server whose default isolation is not the one it needs.
func TestOtherSessions(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeExec,
		pgx.QueryExecModeCacheDescribe,
		pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			r := newRig(t)
			cfg := r.pool.Config().Copy()
			cfg.ConnConfig.DefaultQueryExecMode = mode
			cfg.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
			own, err := pgxpool.NewWithConfig(context.Background(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(own.Close)
			// r watches: a serializable reader might have to try again.
			other := &rig{t: t, pool: own}
			sink := newScripted(func(ctx context.Context, a *outbox.Attempt) outbox.Result {
				switch {
				case strings.Contains(string(a.Body), "reject"):
					return outbox.Result{Outcome: outbox.Rejected, Reason: "no"}
				case a.Number < 3:
					return outbox.Failure("again", nil)
				}
				return outbox.Result{Outcome: outbox.Delivered}
			})
			sink.limits = outbox.Limits{KeyWindow: time.Hour, Timeout: time.Second}
			bare := charge("no header")
			bare.Header = nil
			bare.Body = nil
			other.enqueue(charge("1"), charge("reject"), bare)
			other.start(testConfig(sink))
			r.states("delivered", "waiting")
			if got := len(sink.calls()); got != 7 {
				t.Errorf("%d calls, want 7", got)
			}
			r.seizeAll()
			until(t, "the fence raises in this mode", other.lost)
			r.giveBack()
			var sent []string
			for _, d := range sink.calls() {
				sent = append(sent, fmt.Sprintf("%s %q", d.Header.Get("Content-Type"), d.Body))
			}
			slices.Sort(sent)
			got := strings.Join(slices.Compact(sent), "|")
			if got != ` ""|application/json "{\"order\":\"1\"}"|application/json "{\"order\":\"reject\"}"` {
				t.Errorf("sent %s", got)
			}
		})
	}
}

// A parked row that another session has locked is left for later, and does not keep others from
// being sent.
func TestLockedRowsAreLeftForLater(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var again atomic.Bool
	sink := newScripted(func(context.Context, *outbox.Attempt) outbox.Result {
		if again.Load() {
			return outbox.Result{Outcome: outbox.Delivered}
		}
		return outbox.Failure("again", nil)
	})
	locked := charge("locked")
	free := charge("free")
	free.ID = r.sameLane(locked, "free")
	r.enqueue(locked, free)
	cfg := testConfig(sink)
	// No attempt is under way when the row is locked.
	cfg.Backoff = dedupe.Backoff{Min: 2 * time.Second, Max: 2 * time.Second}
	r.start(cfg)
	r.states("retrying")
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(
		t.Context(),
		`select 1 from onlyonce.parked where id = (select min(id) from onlyonce.parked) for update`,
	); err != nil {
		t.Fatal(err)
	}
	again.Store(true)
	until(t, "the free one is delivered", func() bool {
		return one[int](r, `select count(*) from onlyonce.calls where state = 'delivered'`) == 1
	})
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.states("delivered")
}
