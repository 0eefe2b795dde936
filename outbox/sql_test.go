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

	"github.com/onlyonce/onlyonce/outbox"
)

// Every statement is accepted by a real server.
func TestStatementsPrepare(t *testing.T) {
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

// The hot statements find their rows by index, whatever the parameters (a generic plan), and visit due rows only.
func TestPlans(t *testing.T) {
	r := newRig(t)
	r.exec(`
		insert into onlyonce.outbox (key, sink, name, method, target, body, state, settled_at, next_attempt_at)
		select gen_random_uuid(), case when n % 10 = 0 then 'mail' else 'payments' end, 'charge', 'POST', '', '',
		       case when n % 2 = 0 then 'delivered' else 'pending' end, case when n % 2 = 0 then clock_timestamp() end,
		       clock_timestamp() + n * interval '1 second'
		  from generate_series(1, 20000) n`)
	r.exec(`analyze onlyonce.outbox`)
	conn, err := r.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), `set plan_cache_mode = force_generic_plan`); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args    string
		indexes []string
	}{
		"pick":      {`'payments', '{}', 8, '23 hours', '30 seconds'`, []string{"outbox_pending", "outbox_pkey"}},
		"delivered": {`'{1,3,5}'`, []string{"outbox_pkey"}},
		"retry":     {`'{1,3}', '{1000,1000}', '{a,b}'`, []string{"outbox_pkey"}},
		"park":      {`'{1,3}', '{rejected,window}', '{a,b}'`, []string{"outbox_pkey"}},
		"purge":     {`'payments', '7 days', 1000`, []string{"outbox_delivered", "outbox_pkey"}},
	} {
		prepared := "plan_" + name
		if _, err := conn.Exec(t.Context(), `prepare `+prepared+` as `+outbox.Statements[name]); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		rows, err := conn.Query(t.Context(), `explain (costs off) execute `+prepared+`(`+c.args+`)`)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		plan := strings.Join(lines, "\n")
		if strings.Contains(plan, "Seq Scan on outbox") {
			t.Errorf("%s reads the whole table:\n%s", name, plan)
		}
		for _, index := range c.indexes {
			if !strings.Contains(plan, "using "+index) && !strings.Contains(plan, "on "+index) {
				t.Errorf("%s does not use %s:\n%s", name, index, plan)
			}
		}
		if name == "pick" && !strings.Contains(plan, "next_attempt_at <= $") && !strings.Contains(plan, "next_attempt_at <= (InitPlan") { // PostgreSQL 18 spells it out
			t.Errorf("pick does not stop at the first row that is not due:\n%s", plan)
		}
	}
}

// A session that does not wait for its commits to be flushed does so for the relay's journal; all else is left alone.
func TestFenceFlushes(t *testing.T) {
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
		_, err = tx.Exec(t.Context(), outbox.Statements["fence"], one[int64](r, `select id from onlyonce.leases`), 1, "00000000-0000-4000-8000-000000000001", "100", "100", "100")
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

// The relay runs without prepared statements (PgBouncer in transaction mode, old versions), and on a server whose default
// isolation is not the one it needs.
func TestOtherSessions(t *testing.T) {
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeSimpleProtocol} {
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
			r.pool = own
			sink := newScripted(func(ctx context.Context, d *outbox.Delivery) outbox.Result {
				switch {
				case strings.Contains(string(d.Body), "reject"):
					return outbox.Reject("no", nil)
				case d.Attempt < 3:
					return outbox.RetryLater("again", nil)
				}
				return outbox.Result{Outcome: outbox.Delivered}
			})
			sink.limits = outbox.Limits{KeyWindow: time.Hour, Timeout: time.Second}
			bare := charge("no header")
			bare.Header, bare.Body = nil, nil
			r.enqueue(charge("1"), charge("reject"), bare)
			r.start(testConfig(sink))
			r.states("delivered", "waiting")
			if got := len(sink.calls()); got != 7 {
				t.Errorf("%d calls, want 7", got)
			}
			r.seizeAll()
			until(t, "the fence raises in this mode", r.lost)
			r.giveBack()
			var sent []string
			for _, d := range sink.calls() {
				sent = append(sent, fmt.Sprintf("%s %q", d.Header.Get("Content-Type"), d.Body))
			}
			slices.Sort(sent)
			if got := strings.Join(slices.Compact(sent), "|"); got != ` ""|application/json "{\"order\":\"1\"}"|application/json "{\"order\":\"reject\"}"` {
				t.Errorf("sent %s", got)
			}
		})
	}
}

// A parked row that somebody else has locked is left for later, and does not keep others from being sent.
func TestLockedRowsAreLeftForLater(t *testing.T) {
	r := newRig(t)
	var again atomic.Bool
	sink := newScripted(func(context.Context, *outbox.Delivery) outbox.Result {
		if again.Load() {
			return outbox.Result{Outcome: outbox.Delivered}
		}
		return outbox.RetryLater("again", nil)
	})
	locked, free := charge("locked"), charge("free")
	free.ID = r.sameLane(locked, "free")
	r.enqueue(locked, free)
	r.start(testConfig(sink))
	r.states("retrying")
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), `select 1 from onlyonce.parked where id = (select min(id) from onlyonce.parked) for update`); err != nil {
		t.Fatal(err)
	}
	again.Store(true)
	until(t, "the free one is delivered", func() bool { return one[int](r, `select count(*) from onlyonce.calls where state = 'delivered'`) == 1 })
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.states("delivered")
}
