package ops

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// S2: doctor names sessions that hold a lock of ours without a right to it, and no others.
func TestS2StrangersAreNamed(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	pgtest.Exec(t, pool, `insert into onlyonce.leases (name) values ('cursor/s/t/0')`)
	login := fmt.Sprintf("stranger_%d", time.Now().UnixNano())
	pgtest.Exec(t, pool, `create role `+login+` login`)
	address := pool.Config().ConnConfig.Copy()
	address.User = login
	for _, lock := range []struct{ sql, of string }{
		{`select pg_advisory_lock(hashint8extended(1, 1869507695))`, "cursor/s/t/0"},
		{`select pg_advisory_lock_shared(1869507688, 7)`, "places"},
		{`select pg_advisory_lock(1869507696, 1)`, "deleting what is settled"},
	} {
		stranger, err := pgx.ConnectConfig(t.Context(), address)
		if err != nil {
			t.Fatal(err)
		}
		own, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		// Ours has the lock of another lease, and the stranger's other lock is not ours.
		for conn, sql := range map[*pgx.Conn]string{
			own.Conn(): `select pg_advisory_lock(1869507705, 3)`,
			stranger:   `select pg_advisory_lock(12, 34)`,
		} {
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		before, err := Examine(t.Context(), pool, ExamineQuestion{})
		if err != nil {
			t.Fatal(err)
		}
		found(t, before.Findings, "locks", levelOK)
		if _, err := stranger.Exec(t.Context(), lock.sql); err != nil {
			t.Fatal(err)
		}
		r, err := Examine(t.Context(), pool, ExamineQuestion{})
		if err != nil {
			t.Fatal(err)
		}
		pid := stranger.PgConn().PID()
		found(t, r.Findings, "locks", levelFail, login, lock.of, fmt.Sprintf("pg_terminate_backend(%d)", pid))
		own.Release()
		if err := stranger.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// S6: sequences that a move by logical replication has left behind are named by doctor and raised
// by rebase, without a sink too. Publications are named.
func TestS6SequencesAreNamedAndRaised(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	pgtest.Exec(t, pool, `insert into onlyonce.leases (name) select 'cursor/s/t/' || n from generate_series(1, 5) n`)
	pgtest.Exec(t, pool, `insert into onlyonce.audit (id, action, actor, reason) overriding system value values (9, 'x', 'y', 'z')`)
	pgtest.Exec(t, pool, `update onlyonce.rings set version = 30 where name = 'standard_keys'`)
	pgtest.Exec(t, pool, `select setval('onlyonce.leases_id_seq', 1, false)`)
	pgtest.Exec(t, pool, `create publication everything for all tables`)
	r, err := Examine(t.Context(), pool, ExamineQuestion{})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		"leases_id_seq is at 0, and 5",
		"audit_id_seq is at 0, and 9",
		"standard_keys_version",
		"outbox rebase",
	} {
		found(t, r.Findings, "sequences", levelFail, text)
	}
	found(t, r.Findings, "publications", levelInfo, "everything")
	done, err := Rebase(t.Context(), pool, By{Reason: "moved"}, RebaseInput{})
	if err != nil {
		t.Fatal(err)
	}
	if len(done.Sequences) != 3 || done.AuditID != 10 {
		t.Errorf("%+v", done)
	}
	if r, err = Examine(t.Context(), pool, ExamineQuestion{}); err != nil {
		t.Fatal(err)
	}
	found(t, r.Findings, "sequences", levelOK)
	pgtest.Exec(t, pool, `insert into onlyonce.leases (name) values ('cursor/s/t/6')`)
}
