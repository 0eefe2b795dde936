package consumer_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// slotRig is a cursor at offset 10, and sessions that work on it without the engine.
type slotRig struct {
	*rig
	id    int64
	epoch int64
	nonce string
}

func newSlotRig(t *testing.T) *slotRig {
	t.Helper()
	s := &slotRig{rig: newRig(t, 1)}
	err := s.pool.QueryRow(t.Context(), `
with l as (insert into onlyonce.leases (name) values ('cursor/stock/orders/0') returning id)
insert into onlyonce.cursors (
  id,
  scope,
  topic,
  partition,
  start_offset,
  run_start,
  start_policy
)
  select id,
         'stock',
         'orders',
         0,
         10,
         10,
         'earliest'
    from l
returning id`).Scan(&s.id)
	if err != nil {
		t.Fatal(err)
	}
	s.raise()
	return s
}

// raiseSQL takes a cursor over. In: its id.
const raiseSQL = `
select onlyonce.take_cursor(
  $1,
  (select epoch from onlyonce.leases where id = $1),
  gen_random_uuid(),
  'stock',
  null,
  null,
  null,
  '5s'
)`

// raise takes the cursor over.
func (s *slotRig) raise() {
	s.t.Helper()
	s.exec(raiseSQL, s.id)
	s.owned()
}

// owned reads epoch and nonce of the owner.
func (s *slotRig) owned() {
	s.t.Helper()
	if err := s.pool.QueryRow(s.t.Context(), `select epoch, nonce::text from onlyonce.leases where id = $1`, s.id).Scan(
		&s.epoch,
		&s.nonce,
	); err != nil {
		s.t.Fatal(err)
	}
}

// session is a connection, and what its last statement failed with.
type session struct {
	*pgx.Conn
	t *testing.T
}

func (s *slotRig) session() *session {
	s.t.Helper()
	conn, err := pgx.ConnectConfig(s.t.Context(), s.pool.Config().ConnConfig)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return &session{conn, s.t}
}

// run runs a statement and returns the SQLSTATE with which it failed.
func (c *session) run(sql string, args ...any) string {
	_, err := c.Exec(c.t.Context(), sql, args...)
	var pg *pgconn.PgError
	if err != nil && !errors.As(err, &pg) {
		c.t.Errorf("%s: %v", sql, err)
	}
	if pg != nil {
		return pg.Code
	}
	return ""
}

// fence records offsets as done, by the owner that the rig knows.
func (s *slotRig) fence(c *session, low int64, offsets, after []int64) string {
	return c.run(`
select onlyonce.fence_slot(
  $1,
  $2,
  $3::text::uuid,
  0,
  $4,
  $5,
  $6,
  $7,
  '5s',
  '5s',
  '5s'
)`,
		s.id, s.epoch, s.nonce, low, offsets, make([]int64, len(offsets)), after)
}

// sweep moves the position over what is done, and over an empty range.
func (s *slotRig) sweep(c *session, from, to int64, emptyFrom, emptyUntil []int64) string {
	return c.run(
		`
select onlyonce.sweep(
  $1,
  (select epoch from onlyonce.leases where id = $1),
  $2::text::uuid,
  0,
  $3,
  $4,
  null,
  null,
  null,
  null,
  $5,
  $6,
  '5s',
  '5s',
  '5s'
)`,
		s.id,
		s.nonce,
		from,
		to,
		emptyFrom,
		emptyUntil,
	)
}

func (c *session) want(what, got, want string) {
	c.t.Helper()
	if got != want {
		c.t.Errorf("%s: SQLSTATE %q, want %q", what, got, want)
	}
}

// done records offsets as done in a transaction of its own.
func (s *slotRig) done(offsets ...int64) {
	s.t.Helper()
	c := s.session()
	c.want("begin", c.run("begin"), "")
	c.want("fence", s.fence(c, 10, offsets, nil), "")
	c.want("seal", c.run("select onlyonce.seal()"), "")
	c.want("commit", c.run("commit"), "")
}

// C1: two transactions that share an offset do not both commit, at any isolation level: the second
// waits for the first.
func TestC1OneOffsetTwoTransactions(t *testing.T) {
	for _, level := range []string{"read committed", "repeatable read", "serializable"} {
		for _, commits := range []bool{true, false} {
			t.Run(level, func(t *testing.T) {
				t.Parallel()
				s := newSlotRig(t)
				first := s.session()
				second := s.session()
				for _, c := range []*session{first, second} {
					c.want("begin", c.run("begin isolation level "+level), "")
				}
				first.want("first fence", s.fence(first, 10, []int64{10, 12}, nil), "")
				answer := make(chan string, 1)
				go func() { answer <- s.fence(second, 10, []int64{11, 12}, nil) }()
				until(t, "the second waits", func() bool { return s.count(`select count(*) from pg_locks where not granted`) > 0 })
				want := ""
				if commits {
					first.want("seal", first.run("select onlyonce.seal()"), "")
					first.want("commit", first.run("commit"), "")
					want = "23505"
				} else {
					first.want("rollback", first.run("rollback"), "")
				}
				got := <-answer
				if level == "serializable" && got == "40001" && commits {
					got = want // the server may say so too
				}
				second.want("second fence", got, want)
			})
		}
	}
}

// C2: a transaction that begins with a message whose predecessor by its ordering key is not done
// raises, and so does one whose offsets the position has passed.
func TestC2FenceSlotRaises(t *testing.T) {
	t.Parallel()
	s := newSlotRig(t)
	s.done(11)
	for _, c := range []struct {
		what           string
		low            int64
		offsets, after []int64
		want           string
	}{
		{"predecessor that is not done", 10, []int64{13}, []int64{12}, "OO001"},
		{"one of two predecessors that is not done", 10, []int64{13}, []int64{11, 12}, "OO001"},
		{"predecessor that is done", 10, []int64{13}, []int64{11}, ""},
		{"predecessor below the position", 10, []int64{13}, []int64{9}, ""},
		{"offset below the position", 10, []int64{9}, nil, "OO001"},
		{"one offset below the position", 10, []int64{13, 9}, nil, "OO001"},
		{"position below what the owner saw", 12, []int64{13}, nil, "OO001"},
		{"offset that is done", 10, []int64{11}, nil, "23505"},
	} {
		conn := s.session()
		conn.want("begin", conn.run("begin"), "")
		conn.want(c.what, s.fence(conn, c.low, c.offsets, c.after), c.want)
		conn.want("rollback", conn.run("rollback"), "")
	}
}

// C3: a take-over waits for the transactions of all slots. One that comes later raises, also if its
// snapshot is older than the take-over.
func TestC3TakeOverWaitsForSlots(t *testing.T) {
	t.Parallel()
	s := newSlotRig(t)
	working := s.session()
	idle := s.session()
	working.want("begin", working.run("begin"), "")
	working.want("fence", s.fence(working, 10, []int64{10}, nil), "")
	idle.want("begin", idle.run("begin isolation level repeatable read"), "")
	idle.want("snapshot", idle.run("select count(*) from onlyonce.cursors"), "")
	old := *s
	raised := make(chan struct{})
	go func() {
		defer close(raised)
		s.raise()
	}()
	until(t, "the take-over waits", func() bool { return s.count(`select count(*) from pg_locks where not granted`) > 0 })
	working.want("seal", working.run("select onlyonce.seal()"), "")
	working.want("commit", working.run("commit"), "")
	pgtest.Receive(t, patience, "raised", raised)
	idle.want("old snapshot", old.fence(idle, 10, []int64{11}, nil), "40001")
	late := s.session()
	late.want("begin", late.run("begin"), "")
	late.want("replaced", old.fence(late, 10, []int64{11}, nil), "OO001")
	if n := s.count(`select count(*) from onlyonce.done`); n != 1 {
		t.Errorf("%d rows", n)
	}
}

// C3: a slot whose transaction waits for a take-over fails, and so does one with an older snapshot.
func TestC3SlotThatWaitsForATakeOver(t *testing.T) {
	for level, waited := range map[string]string{"read committed": "OO001", "repeatable read": "40001", "serializable": "40001"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			s := newSlotRig(t)
			begin := func() *session {
				c := s.session()
				c.want("begin", c.run("begin isolation level "+level), "")
				return c
			}
			working := begin()
			idle := begin()
			later := begin()
			owner := s.session()
			idle.want("snapshot", idle.run("select count(*) from onlyonce.cursors"), "")
			owner.want("begin", owner.run("begin"), "")
			working.want("fence", s.fence(working, 10, []int64{10}, nil), "")
			raised := make(chan string, 1)
			answer := make(chan string, 1)
			go func() { raised <- owner.run(raiseSQL, s.id) }()
			waits(t, s.pool, &claimer{conn: owner.Conn})
			working.want("seal", working.run("select onlyonce.seal()"), "")
			working.want("commit", working.run("commit"), "")
			owner.want("take-over", <-raised, "")
			go func() { answer <- s.fence(later, 10, []int64{11}, nil) }()
			waits(t, s.pool, &claimer{conn: later.Conn})
			owner.want("commit", owner.run("commit"), "")
			later.want("a slot that waited", <-answer, waited)
			idle.want("a slot with an older snapshot", s.fence(idle, 10, []int64{12}, nil), waited)
			after := begin()
			after.want("a later slot", s.fence(after, 10, []int64{13}, nil), "OO001")
		})
	}
}

// C4: the position moves over what is done or empty, and over nothing else.
func TestC4SweepRaisesAtAGap(t *testing.T) {
	t.Parallel()
	s := newSlotRig(t)
	s.done(10, 11, 14)
	c := s.session()
	for _, x := range []struct {
		what                  string
		to                    int64
		emptyFrom, emptyUntil []int64
		want                  string
	}{
		{"gap at the end", 13, nil, nil, "OO001"},
		{"gap in the middle", 15, []int64{13}, []int64{14}, "OO001"},
		{"nothing is done", 20, nil, nil, "OO001"},
		{"up to the gap", 12, nil, nil, ""},
	} {
		c.want(x.what, s.sweep(c, 10, x.to, x.emptyFrom, x.emptyUntil), x.want)
	}
	c.want("from an older position", s.sweep(c, 10, 12, nil, nil), "OO001")
	c.want("over an empty range", s.sweep(c, 12, 15, []int64{12}, []int64{14}), "")
	if p := s.position(0); p != 15 {
		t.Errorf("position %d", p)
	}
}

// T6: a COMMIT that the seal has not allowed fails for slots too, whichever of the transaction's
// rows it would be (C1).
func TestT6SlotNeedsTheSeal(t *testing.T) {
	t.Parallel()
	s := newSlotRig(t)
	c := s.session()
	c.want("begin", c.run("begin"), "")
	c.want("fence", s.fence(c, 10, []int64{10, 11, 12}, nil), "")
	c.want("commit", c.run("commit"), "OO002")
	if n := s.count(`select count(*) from onlyonce.done`); n != 0 {
		t.Errorf("%d rows", n)
	}
}
