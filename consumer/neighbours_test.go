package consumer_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/consumer"
)

// S2: a login without any right holds the lock of a partition's owner. PostgreSQL lets it, so the
// halt names the session, and the partition goes on when the lock is free.
func TestS2HaltNamesTheSessionWithTheLock(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	values := r.numbered(0, 2)
	cfg := testConfig()
	cfg.BlockedAfter = 50 * time.Millisecond
	cfg.Timeouts.Lock = 50 * time.Millisecond
	cfg.Timeouts.Statement = time.Second
	cfg.Timeouts.Commit = time.Second
	cfg.Timeouts.Idle = time.Second
	cfg.BatchTimeout = time.Second
	cfg.HandlerTimeout = time.Second
	cfg.HangTimeout = time.Second
	stop := r.start(effect, cfg)
	r.reaches(0, 2)
	login := fmt.Sprintf("stranger_%d", time.Now().UnixNano())
	r.exec(`create role ` + login + ` login`)
	t.Cleanup(func() { _, _ = r.pool.Exec(t.Context(), `drop role `+login) })
	address := r.pool.Config().ConnConfig.Copy()
	address.User = login
	stranger, err := pgx.ConnectConfig(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stranger.Close(t.Context()) }()
	if _, err := stranger.Exec(t.Context(), `select from onlyonce.cursors`); err == nil {
		t.Fatal("the stranger has rights")
	}
	lock := `select pg_advisory_lock(hashint8extended(id, 1869507695)) from generate_series(1, 100) id`
	if _, err := stranger.Exec(t.Context(), lock); err != nil {
		t.Fatal(err)
	}
	r.log.Append(0, "later", id("later"))
	session := fmt.Sprintf("session %d (login %s", stranger.PgConn().PID(), login)
	if h := r.halted(); h.Reason != consumer.HaltBlocked || !strings.Contains(h.Detail, session) {
		t.Errorf("halt: %v, which does not name %s", h, session)
	}
	if _, err := stranger.Exec(t.Context(), `select pg_advisory_unlock_all()`); err != nil {
		t.Fatal(err)
	}
	r.reaches(0, 3)
	stop()
	r.once(append(values, "later")...)
}

// S6: a sequence that logical replication left behind gives out ids of rows that are there. The
// message is not at fault: it is neither passed over nor offered for that, and the halt says what
// to run.
func TestS6SequenceBehindIsNotTheMessages(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	values := r.numbered(0, 3)
	cfg := testConfig()
	cfg.BlockedAfter = 50 * time.Millisecond
	r.exec(`alter sequence onlyonce.parked_id_seq minvalue 1 maxvalue 2 restart 1 cycle`) // behind, however often it is asked
	r.exec(`insert into onlyonce.parked (
  kind,
  state,
  reason,
  error,
  scope,
  topic,
  partition,
  "offset",
  settled_at
)
  select 'message',
         'discarded',
         'permanent',
         '',
         'other',
         't',
         0,
         n,
         now()
    from generate_series(1, 2) n`)
	stop := r.start(permanentAtOne, cfg)
	h := r.halted()
	good := h.Reason == consumer.HaltBlocked &&
		h.Position == 1 &&
		strings.Contains(h.Detail, "onlyonce outbox rebase") &&
		strings.Contains(h.Detail, "parked_id_seq") &&
		!strings.Contains(h.Detail, "give it up")
	if !good {
		t.Errorf("halt: %v", h)
	}
	r.exec(`alter sequence onlyonce.parked_id_seq no maxvalue restart 3 no cycle`)
	r.reaches(0, 3)
	stop()
	r.once(values[0], values[2])
	if got := r.reasons(); len(got) != 1 {
		t.Errorf("parked: %v", got)
	}
}
