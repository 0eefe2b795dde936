//go:build unix

package devenv_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/test/devenv"
)

// A paused server takes no queries and forgets nothing: the one that waits is answered when it goes
// on.
func TestPostgresPauseContinue(t *testing.T) {
	t.Parallel()
	p := startPostgres(t, devenv.Options{Own: true})
	conn, err := pgx.Connect(t.Context(), p.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := p.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), "select 1")
		answered <- err
	}()
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if other, err := pgx.Connect(short, p.URL); err == nil {
		_ = other.Close(t.Context())
		t.Error("a paused server takes connections")
	}
	select {
	case err := <-answered:
		t.Errorf("a paused server has answered: %v", err)
	default:
	}
	if err := p.Continue(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Error(err)
	}
	if err := p.Pause(t.Context()); err != nil { // Stop copes with a paused one
		t.Fatal(err)
	}
}

// A failover that loses the last commits, and its way back: the old primary's successor gets a
// standby of its own.
func TestPostgresLossyFailover(t *testing.T) {
	t.Parallel()
	p := startPostgres(t, devenv.Options{Own: true})
	mustQuery(t, p.URL, `with t as (select 1) select lo_from_bytea(1000, 'kept')::text from t`)
	for round := range 2 {
		s := startStandby(t, p)
		if err := p.CaughtUp(t.Context(), "twin"); err != nil {
			t.Fatal(err)
		}
		if got := mustQuery(t, s.URL, `select pg_is_in_recovery()::text || convert_from(lo_get(1000), 'UTF8')`); got != "truekept" {
			t.Fatalf("the standby says %q", got)
		}
		if err := s.Detach(t.Context()); err != nil {
			t.Fatal(err)
		}
		mustQuery(t, p.URL, `select lo_from_bytea(2000, 'lost')::text`)
		if err := p.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := s.Promote(t.Context()); err != nil {
			t.Fatal(err)
		}
		objects := []string{"3000", "4000"}
		for question, want := range map[string]string{
			`select pg_is_in_recovery()::text`:                                    "false",
			`select convert_from(lo_get(1000), 'UTF8')`:                           "kept",
			`select count(*)::text from pg_largeobject_metadata where oid = 2000`: "0",
			// Only that it answers.
			`select timeline_id::text from pg_control_checkpoint()`:  "",
			`select lo_from_bytea(` + objects[round] + `, '')::text`: objects[round],
		} {
			if got := mustQuery(t, s.URL, question); want != "" && got != want {
				t.Errorf("round %d: %s = %q, want %q", round, question, got, want)
			}
		}
		if err := p.Stop(); err != nil {
			t.Fatal(err)
		}
		p = s
	}
}

// With its standby named, a COMMIT is there after the failover or was never answered.
func TestPostgresSynchronousStandby(t *testing.T) {
	t.Parallel()
	p := startPostgres(t, devenv.Options{Own: true})
	s := startStandby(t, p)
	if err := p.Synchronous(t.Context(), "twin"); err != nil {
		t.Fatal(err)
	}
	if got := mustQuery(t, p.URL, `select sync_state from pg_stat_replication`); got != "sync" {
		t.Errorf("sync_state is %q", got)
	}
	mustQuery(t, p.URL, `select lo_from_bytea(1000, 'kept')::text`)
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	waiting := make(chan error, 1)
	go func() {
		_, err := query(p.URL, `select lo_from_bytea(2000, 'unknown')::text`)
		waiting <- err
	}()
	eventually(t, "a COMMIT waits for the standby", func() bool {
		return mustQuery(t, p.URL, `select count(*)::text from pg_stat_activity where wait_event = 'SyncRep'`) == "1"
	})
	if err := p.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-waiting; err == nil {
		t.Error("a COMMIT was answered that no standby had")
	}
	if err := s.Continue(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := mustQuery(t, s.URL, `select convert_from(lo_get(1000), 'UTF8')`); got != "kept" {
		t.Errorf("after the failover: %q", got)
	}
}

func startStandby(t *testing.T, p *devenv.Postgres) *devenv.Postgres {
	t.Helper()
	s, err := p.Standby(t.Context(), "twin", devenv.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}
