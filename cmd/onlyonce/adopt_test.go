package main

import (
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/internal/program"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

var adoptOrders0 = []string{"cursor", "adopt", "-scope", "stock", "-topic", "orders", "-partition", "0", "-reason", "INC-7"}

func adoptArgs(more ...string) []string {
	return append(adoptOrders0[:len(adoptOrders0):len(adoptOrders0)], more...)
}

// shown returns the cursor of partition 0 as `cursor show` prints it.
func (f *fixture) shown() (c ops.Cursor) {
	f.t.Helper()
	r := f.run("cursor", "show", "-scope", "stock", "-topic", "orders", "-partition", "0", "-json").want(f.t, statusGood)
	if err := json.Unmarshal([]byte(r.out), &c); err != nil {
		f.t.Fatalf("%q: %v", r.out, err)
	}
	return c
}

type auditRow struct {
	Scope, Topic      string
	Partition         int
	Before, After     *ops.Cursor
	Skipped, Repeated *int64
}

// audited returns the detail of the only audit row.
func (f *fixture) audited(reason string) (d auditRow) {
	f.t.Helper()
	if n := one[int](f, `select count(*) from onlyonce.audit`); n != 1 {
		f.t.Fatalf("%d audit rows, want 1", n)
	}
	if got := one[string](
		f,
		`select action || '|' || reason || '|' || (actor = current_user) from onlyonce.audit`,
	); got != "cursor adopt|"+reason+"|true" {
		f.t.Errorf("audit row: %s", got)
	}
	if err := json.Unmarshal(one[[]byte](f, `select detail from onlyonce.audit`), &d); err != nil {
		f.t.Fatal(err)
	}
	if d.Scope != "stock" || d.Topic != "orders" || d.Partition != 0 {
		f.t.Errorf("audit row: %+v", d)
	}
	return d
}

// untouched fails the test if anything was written since before.
func (f *fixture) untouched(before ops.Cursor) {
	f.t.Helper()
	got, _ := json.Marshal(f.shown())
	want, _ := json.Marshal(before)
	if string(got) != string(want) {
		f.t.Errorf("the cursor was changed from %s to %s", want, got)
	}
	if n := one[int](f, `select count(*) from onlyonce.audit`); n != 0 {
		f.t.Errorf("%d audit rows", n)
	}
}

// A foreign group: the group is free for the next owner, and all that proves that the log is the
// same stays.
func TestAdoptWithoutOffset(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.populate()
	nonce := one[string](f, `select nonce::text from onlyonce.leases where name = 'cursor/stock/orders/0'`)
	r := f.run(adoptArgs("-yes")...).want(t, statusGood, "Nothing is skipped and nothing handled again", "needs -at OFFSET",
		"Group g1 did not release the cursor properly", "Done: the next offset is 17; audit row").lines(t, 0)
	t.Log("\n" + r.out)
	c := f.shown()
	good := c.Group == nil &&
		c.Position == 17 &&
		c.Run == 0 &&
		c.Epoch == 5 &&
		*c.ClusterID == "c1" &&
		c.TopicID != nil &&
		*c.AnchorOffset == 16 &&
		c.Attempts == 2 &&
		*c.AttemptOffset == 17 &&
		c.StartPolicy == "earliest" &&
		!c.Clean
	if !good {
		t.Errorf("cursor: %+v", c)
	}
	if now := one[string](f, `select nonce::text from onlyonce.leases where name = 'cursor/stock/orders/0'`); now == nonce {
		t.Error("the nonce is the old owner's")
	}
	d := f.audited("INC-7")
	good = *d.Before.Group == "g1" &&
		d.Before.Epoch == 4 &&
		d.After.Group == nil &&
		d.After.Epoch == 5 &&
		*d.Skipped == 0 &&
		*d.Repeated == 0
	if !good {
		t.Errorf("audit: %+v", d)
	}
	if other := f.run("cursor", "show", "-partition", "1", "-json"); !strings.Contains(other.out, `"epoch":0`) {
		t.Error("another cursor was changed")
	}
}

func TestAdoptForAGroup(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.populate()
	// The command that a halt prints is refused while the old group may live.
	f.run(adoptArgs("-yes", "-group", "g2")...).want(t, statusFailed, `group "g1" has not let the cursor go`,
		"Config.Scope", "-old-group-stopped")
	if c := f.shown(); *c.Group != "g1" || c.Epoch != 4 {
		t.Errorf("cursor: %+v", c)
	}
	r := f.run(adoptArgs("-yes", "-group", "g2", "-old-group-stopped")...).want(t, statusGood, "g2")
	if strings.Contains(r.out, "not let go in order") {
		t.Errorf("the old group is warned of although it is kept out:\n%s", r.out)
	}
	if c := f.shown(); c.Group == nil || *c.Group != "g2" || c.Position != 17 {
		t.Errorf("cursor: %+v", c)
	}
}

// A new topic, a gap, a truncated log: the position is set in a new run without an anchor,
// whichever incarnation the topic is.
func TestAdoptWithOffset(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		at                string
		position          int64
		skipped, repeated int64
		says              string
	}{
		{"20", 20, 3, 0, "Skipped, if the topic is still the same: 3 offsets, 17 to 19."},
		{"12", 12, 0, 5, "Handled again, if the topic is still the same: 5 offsets, 12 to 16."},
		{"17", 17, 0, 0, "Nothing is skipped"},
		{"0", 0, 0, 17, "17 offsets, 0 to 16"},
	} {
		t.Run(c.at, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.populate()
			r := f.run(adoptArgs("-yes", "-at", c.at)...).want(t, statusGood, c.says, "Done: the next offset is "+c.at)
			t.Log("\n" + r.out)
			got := f.shown()
			good := got.Position == c.position &&
				got.Run == 1 &&
				got.Epoch == 5 &&
				got.Group == nil &&
				got.ClusterID == nil &&
				got.TopicID == nil &&
				got.AnchorOffset == nil &&
				got.Attempts == 0 &&
				got.AttemptOffset == nil &&
				got.StartPolicy == "earliest" &&
				got.StartOffset == 0
			if !good {
				t.Errorf("cursor: %+v", got)
			}
			if n := one[int](
				f,
				`select count(*) from onlyonce.cursors c
					where run_start = $1 and not exists (select from onlyonce.attempts a where a.cursor_id = c.id)`,
				c.position,
			); n != 1 {
				t.Error("attempts are not those of a new run")
			}
			d := f.audited("INC-7")
			good = *d.Skipped == c.skipped &&
				*d.Repeated == c.repeated &&
				d.Before.Position == 17 &&
				d.After.Position == c.position &&
				*d.Before.TopicID != ""
			if !good {
				t.Errorf("audit: %+v", d)
			}
		})
	}
}

// History lost: there is no cursor, and an adoption with an offset makes one.
func TestAdoptWithoutCursor(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.run(adoptArgs("-yes")...).want(t, statusEnvironment, "no cursor", `scope "stock", topic "orders", partition 0`, "-at OFFSET").lines(
		t,
		2,
	)
	if n := one[int](f, `select count(*) from onlyonce.audit`); n != 0 {
		t.Error("an audit row for nothing")
	}
	r := f.run(adoptArgs("-yes", "-at", "42", "-group", "g2")...).want(
		t,
		statusGood,
		"There was no cursor: work starts at offset 42",
		"the next offset is 42",
	)
	t.Log("\n" + r.out)
	c := f.shown()
	good := c.Position == 42 &&
		c.StartOffset == 42 &&
		c.StartPolicy == "adopted" &&
		c.Run == 0 &&
		*c.Group == "g2" &&
		c.ClusterID == nil &&
		c.AnchorOffset == nil
	if !good {
		t.Errorf("cursor: %+v", c)
	}
	d := f.audited("INC-7")
	good = d.Before == nil &&
		d.After.Position == 42 &&
		d.Skipped == nil &&
		d.Repeated == nil
	if !good {
		t.Errorf("audit: %+v", d)
	}
	if name := one[string](f, `select name from onlyonce.leases`); name != "cursor/stock/orders/0" {
		t.Errorf("lease: %s", name)
	}
}

// O6: if an operator sets the position back, messages are handled again whose calls may have been
// made. That holds for every later owner, and however far Kafka's offset was from the position.
func TestO6AdoptNotesWhatIsHandledAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.populate()
	f.run(adoptArgs("-yes", "-at", "3")...).want(t, statusGood, "Handled again")
	if c := f.shown(); c.RedoUntil == nil || *c.RedoUntil != 17 {
		t.Errorf("cursor: %+v", c)
	}
	f.run(adoptArgs("-yes", "-at", "3000")...).want(t, statusGood) // a slip: no message there was handled
	f.run(adoptArgs("-yes", "-at", "2")...).want(t, statusGood)
	if c := f.shown(); *c.RedoUntil != 17 || c.RedoTopicID == nil {
		t.Errorf("cursor: %+v", c)
	}
	// If the topic is made anew, and that part is handled, it no longer counts.
	f.exec(`update onlyonce.cursors set topic_id = gen_random_uuid() where partition = 0`)
	f.progress("cursor/stock/orders/0", 3, 2, 5)
	f.exec(`update onlyonce.progress p set anchor_offset = 4, anchor_epoch = 0, anchor_hash = '\x02' from onlyonce.cursors c
		where c.id = p.cursor_id and c.run = p.run and c.partition = 0`)
	f.run(adoptArgs("-yes", "-at", "1")...).want(t, statusGood)
	if c := f.shown(); *c.RedoUntil != 5 {
		t.Errorf("cursor: %+v", c)
	}
}

// A lease has lost its cursor, and progress of the old cursor is left: the position is the one that
// was asked for.
func TestAdoptLeaseWithoutCursor(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.populate()
	f.exec(`delete from onlyonce.cursors where partition = 0`)
	f.run(adoptArgs("-yes", "-at", "3")...).want(t, statusGood, "the next offset is 3")
	if c := f.shown(); c.Position != 3 || c.Run != 1 || c.Epoch != 5 {
		t.Errorf("cursor: %+v", c)
	}
}

// The present owner is fenced out: none of its running transactions commits any more.
func TestAdoptFencesTheOwner(t *testing.T) {
	t.Parallel()
	for _, at := range [][]string{nil, {"-at", "30"}} {
		f := newFixture(t)
		f.populate()
		const fence = `select onlyonce.fence($1, 4, $2::uuid, 0, 17, 18, null, null, null, null, '1s', '1s', '1s')`
		id := one[int64](f, `select id from onlyonce.leases where name = 'cursor/stock/orders/0'`)
		nonce := one[string](f, `select nonce::text from onlyonce.leases where id = $1`, id)
		tx, err := f.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), fence, id, nonce); err != nil {
			t.Fatalf("the owner before: %v", err)
		}
		_ = tx.Rollback(t.Context())
		f.run(adoptArgs(append(at, "-yes")...)...).want(t, statusGood)
		_, err = f.pool.Exec(t.Context(), fence, id, nonce)
		var pg *pgconn.PgError
		if !asError(err, &pg) || pg.Code != "OO001" {
			t.Errorf("the owner after: %v", err)
		}
	}
}

// The adoption waits for the owner's running batch, and that batch counts: skipped offsets are
// counted from its end.
func TestAdoptWaitsForTheOwnersBatch(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.populate()
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(
		t.Context(),
		`select onlyonce.fence(id, epoch, nonce, 0, 17, 19, 18, 0, '\x02', 0, '1s', '1s', '1min'), onlyonce.seal()
		from onlyonce.leases where name = 'cursor/stock/orders/0'`,
	); err != nil {
		t.Fatal(err)
	}
	ended := make(chan result, 1)
	go func() { ended <- f.run(adoptArgs("-yes", "-at", "20")...) }()
	f.until(`select count(*) = 1 from pg_stat_activity
		where datname = current_database() and wait_event_type = 'Lock' and query like '%lock_owner%'`)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := (<-ended).want(t, statusGood, "Skipped, if the topic is still the same: 1 offsets, 19 to 19.", "the next offset is 20")
	t.Log("\n" + r.out)
	if d := f.audited("INC-7"); d.Before.Position != 19 || *d.Skipped != 1 {
		t.Errorf("audit: %+v", d)
	}
}

// until polls the database for a condition.
func (f *fixture) until(sql string) {
	f.t.Helper()
	pgtest.Until(f.t, testPatience, sql, func() bool { return one[bool](f, sql) })
}

func TestAdoptAsks(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.populate()
	before := f.shown()
	for _, in := range []string{"", "\n", "n\n", "no\n", "yeah\n"} {
		f.terminal = true
		f.stdin = strings.NewReader(in)
		r := f.run(adoptArgs("-at", "20")...).want(t, statusFailed, "Do this? [y/N]", "the answer was no")
		if !strings.Contains(r.out, "3 offsets, 17 to 19") || strings.Contains(r.out, "Done") {
			t.Errorf("%q: %s", in, r.out)
		}
		f.untouched(before)
	}
	f.stdin = strings.NewReader("y\n")
	f.run(adoptArgs("-at", "20")...).want(t, statusGood, "BEFORE", "Done: the next offset is 20")
	if c := f.shown(); c.Position != 20 {
		t.Errorf("cursor: %+v", c)
	}
	f.stdin = strings.NewReader("YES")
	f.run(adoptArgs("-at", "21")...).want(t, statusGood)
}

// Without a terminal and without -yes the command cannot ask: it does not even read the database.
func TestAdoptWithoutTerminal(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.populate()
	before := f.shown()
	f.stdin = strings.NewReader("y\n")
	f.run(adoptArgs("-at", "20")...).want(t, statusEnvironment, "-yes", "no terminal")
	f.stdin = openFile(t, "/dev/null")
	f.run(adoptArgs("-at", "20")...).want(t, statusEnvironment, "-yes", "no terminal")
	f.untouched(before)
}

// reader runs a function before it answers.
type reader struct {
	first  func()
	answer io.Reader
}

func (r *reader) Read(p []byte) (int, error) {
	if first := r.first; first != nil {
		r.first = nil
		done := make(chan struct{})
		go func() { defer close(done); first() }() // a goroutine of its own: it may end by t.Fatal
		<-done
	}
	return r.answer.Read(p)
}

// The command does what the operator agreed to, or nothing.
func TestAdoptCursorChangesMeanwhile(t *testing.T) {
	t.Parallel()
	const taken = `update onlyonce.leases set epoch = epoch + 1, nonce = gen_random_uuid() where name = 'cursor/stock/orders/0'`
	for _, c := range []struct {
		name   string
		change func(f *fixture)
		args   []string
		status int
	}{
		{"taken over", func(f *fixture) { f.exec(taken) }, nil, statusFailed},
		{
			"position set",
			func(f *fixture) { f.exec(`update onlyonce.cursors set run = 1, run_start = 50 where partition = 0`) },
			nil,
			statusFailed,
		},
		{
			"moved on, offset given",
			func(f *fixture) { f.progress("cursor/stock/orders/0", 0, 17, 18) },
			[]string{"-at", "20"},
			statusFailed,
		},
		{"moved on, no offset", func(f *fixture) { f.progress("cursor/stock/orders/0", 0, 17, 18) }, nil, statusGood},
		{
			"deleted",
			func(f *fixture) { f.exec(`delete from onlyonce.leases where name = 'cursor/stock/orders/0'`) },
			[]string{"-at", "20"},
			statusFailed,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.populate()
			f.terminal = true
			f.stdin = &reader{func() { c.change(f) }, strings.NewReader("y\n")}
			r := f.run(adoptArgs(c.args...)...)
			if c.status == statusFailed {
				r.want(t, statusFailed, "changed while you were asked")
				if n := one[int](f, `select count(*) from onlyonce.audit`); n != 0 {
					t.Error("an audit row for nothing")
				}
				return
			}
			r.want(t, statusGood, "the next offset is 18")
		})
	}
	t.Run("made meanwhile", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.terminal = true
		f.stdin = &reader{f.populate, strings.NewReader("y\n")}
		f.run(adoptArgs("-at", "20")...).want(t, statusFailed, "changed while you were asked")
		if c := f.shown(); c.Position != 17 {
			t.Errorf("cursor: %+v", c)
		}
	})
}

// A consumer makes the cursor between the command's read and its insert: the consumer wins, and the
// command reports it.
func TestAdoptRacesWithTheStart(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `with l as (insert into onlyonce.leases (name) values ('cursor/stock/orders/0') returning id)
		insert into onlyonce.cursors (id, scope, topic, partition, start_offset, run_start, start_policy)
		select id, 'stock', 'orders', 0, 7, 7, 'committed' from l`); err != nil {
		t.Fatal(err)
	}
	ended := make(chan result, 1)
	go func() { ended <- f.run(adoptArgs("-yes", "-at", "42")...) }()
	f.until(`select count(*) = 1 from pg_stat_activity
		where datname = current_database() and wait_event_type = 'Lock' and query like '%into onlyonce.cursors%'`)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	(<-ended).want(t, statusFailed, "a consumer made the cursor at this moment").lines(t, 1)
	c := f.shown()
	if c.Position != 7 || c.Epoch != 0 {
		t.Errorf("cursor: %+v", c)
	}
	f.untouched(c)
}

// An interrupt while the command waits for an answer ends it.
func TestAdoptInterrupted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.populate()
	before := f.shown()
	ctx, cancel := context.WithCancel(t.Context())
	silent, w := io.Pipe()
	defer w.Close()
	s := f.session
	s.ctx = ctx
	s.terminal = true
	s.stdin = &reader{cancel, silent}
	s.run(adoptArgs("-at", "20")...).want(t, statusFailed, "interrupted: nothing was changed")
	f.untouched(before)
}

func TestAdvice(t *testing.T) {
	t.Parallel()
	db := &program.Database{Name: `postgres at h:1, database "d"`}
	for code, want := range map[string]string{"55P03": "try again", "25006": "primary", "42501": "role", "XX000": "XX000"} {
		err := explainedBy(db, &pgconn.PgError{Code: code, Message: "no"})
		if !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "h:1") {
			t.Errorf("%s: %v", code, err)
		}
	}
}
