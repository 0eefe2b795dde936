package webhook_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
)

// W7: what a set finds of an event, and the body's row afterwards, for each row of the table in the
// comment of onlyonce.receive_webhooks. A row that is older than the window counts as none.
func TestW7RowsOfBodies(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i, c := range []struct{ row, id, found, after string }{
		{"none", "new", "0", "this open new"},
		{"none", "known", "1", "null open new"},
		{"none", "another", "2", "this aside new"},
		{"null open", "new", "0", "this open new"},
		{"null aside", "new", "0", "this aside new"},
		{"null open", "known", "1", "null open as it was"},
		{"null open", "another", "2", "this aside new"},
		{"null aside", "known", "1", "null aside as it was"},
		{"null aside", "another", "1", "null aside as it was"},
		{"this open", "known", "1", "this open as it was"},
		{"this aside", "known", "1", "this aside as it was"},
		{"this open", "another", "2", "this aside as it was"},
		{"this aside", "another", "1", "this aside as it was"},
		{"other open", "new", "3", "other aside as it was"},
		{"other open", "known", "3", "other aside as it was"},
		{"other open", "another", "3", "other aside as it was"},
		{"other aside", "new", "1", "other aside as it was"},
		{"other aside", "known", "1", "other aside as it was"},
		{"other aside", "another", "1", "other aside as it was"},
		{"other aside, over", "new", "0", "this open new"},
		{"other aside, over", "known", "1", "other aside as it was"},
		{"other aside, over", "another", "2", "this aside new"},
		{"this aside, over", "another", "2", "this aside new"},
		{"null aside, over", "another", "2", "this aside new"},
	} {
		endpoint := fmt.Sprint("e", i)
		this := fmt.Sprintf("%08d-0000-4000-8000-000000000001", i)
		other := fmt.Sprintf("%08d-0000-4000-8000-000000000002", i)
		digest := []byte("d")
		switch c.id {
		case "known":
			r.receive(endpoint, []string{this}, []int64{1}, nil)
		case "another":
			r.receive(endpoint, []string{this}, []int64{2}, nil)
		}
		claimed := r.count("onlyonce.webhook_ids")
		if c.row != "none" {
			r.exec(`insert into onlyonce.webhook_bodies
				select $1, $2, case when starts_with($3, 'this') then $4::uuid when starts_with($3, 'other') then $5::uuid end,
				       clock_timestamp() - case when $3 like '%over' then interval '2 hours' else interval '30 minutes' end, $3 like '%aside%'`,
				endpoint, digest, c.row, this, other)
		}
		var found []int16
		err := pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) error {
			if err := tx.QueryRow(t.Context(), receiveSet, endpoint, []string{this}, []int64{1}, [][]byte{digest}).Scan(&found); err != nil {
				return err
			}
			_, err := tx.Exec(t.Context(), `select onlyonce.seal()`)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		after := one[string](r, `select case key when $2 then 'this' when $3 then 'other' else 'null' end || case when aside then ' aside' else ' open' end
			|| case when seen_at > clock_timestamp() - interval '20 minutes' then ' new' else ' as it was' end
			from onlyonce.webhook_bodies where endpoint = $1`, endpoint, this, other)
		if got := fmt.Sprint(found[0]); got != c.found || after != c.after {
			t.Errorf("row %s, id %s: found %s, row %s; want %s, row %s", c.row, c.id, got, after, c.found, c.after)
		}
		if n := r.count("onlyonce.webhook_ids") - claimed; (n == 1) != (found[0] == 0) {
			t.Errorf("row %s, id %s: found %d, and %d ids are noted", c.row, c.id, found[0], n)
		}
	}
}

// W7: a set locks the rows of its bodies in one order, whatever the order of its events, so that
// two sets do not deadlock: while it waits for the first of them, it holds none of the others.
func TestW7SetsLockBodiesInOneOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	key := func(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }
	first, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.Exec(t.Context(), receiveSet, "e", []string{key(1)}, []int64{1}, [][]byte{[]byte("a")}); err != nil {
		t.Fatal(err)
	}
	waits := make(chan string, 1)
	go func() {
		found, err := r.tryReceive("e", []string{key(2), key(3)}, []int64{2, 1}, [][]byte{[]byte("b"), []byte("a")})
		waits <- fmt.Sprint(found, err)
	}()
	r.until("the set waits", func() bool {
		return one[bool](r, `select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')`)
	})
	if found := r.receive("e", []string{key(4)}, []int64{2}, [][]byte{[]byte("b")}); found[0] != 0 {
		t.Errorf("found %d", found[0])
	}
	if err := first.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-waits; got != "[3 0] <nil>" {
		t.Errorf("the set found %s", got)
	}
}
