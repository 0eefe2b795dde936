package webhook_test

import (
	"fmt"
	"testing"
)

// W7: what a set finds of an event, and the body's row afterwards, for each row of the table in the
// comment of onlyonce.receive_webhooks. A row that is older than the window counts as none.
func TestW7RowsOfBodies(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i, c := range []struct{ row, id, event, found, after string }{
		{"none", "new", "", "0", "this new"},
		{"none", "new", "named", "0", "this named new"},
		{"none", "known", "", "1", "none"},
		{"none", "known", "named", "5", "this named new"},
		{"none", "known", "named listed", "1", "none"},
		{"none", "another", "", "4", "its other new"},
		{"none", "another", "without other", "2", "none"},
		{"none", "another", "named without other", "2", "this named new"},
		{"none", "another, taken", "", "1", "none"},
		{"none", "another, taken", "named", "5", "its other named new"},
		{"this", "known", "", "1", "this as it was"},
		{"its other", "another, taken", "", "1", "its other as it was"},
		{"this", "another", "without other", "2", "this as it was"},
		{"third", "new", "", "3", "third as it was"},
		{"third", "known", "", "3", "third as it was"},
		{"third", "another", "", "3", "third as it was"},
		{"third", "new", "aside", "1", "third as it was"},
		{"third", "new", "handled", "0", "third as it was"},
		{"third", "known", "handled", "1", "third as it was"},
		{"third", "another", "handled", "4", "third as it was"},
		{"third named", "new", "handled", "3", "third named as it was"},
		{"third over", "new", "", "0", "this new"},
		{"third over", "new", "named", "0", "this named new"},
		{"third over", "known", "", "1", "third as it was"},
		{"third over", "known", "named", "5", "this named new"},
		{"third over", "another", "", "4", "its other new"},
	} {
		key := func(n int) string { return fmt.Sprintf("%08d-0000-4000-8000-%012d", i, n) }
		if got, after := r.receiveOne(fmt.Sprint("e", i), key, c.row, c.id, c.event); got != c.found || after != c.after {
			t.Errorf("row %s, id %s, event %q: found %s, row %s; want %s, row %s", c.row, c.id, c.event, got, after, c.found, c.after)
		}
	}
}

// receiveOne receives an event of an endpoint, after what came before as TestW7RowsOfBodies says.
func (r *rig) receiveOne(endpoint string, key func(int) string, row, id, event string) (found, after string) {
	r.t.Helper()
	this := key(1)
	other := key(2)
	aside := key(3)
	third := key(4)
	has := func(text, word string) bool { return one[bool](r, `select $1 like '%' || $2 || '%'`, text, word) }
	claim := func(key string, print int64) {
		s := &set{endpoint: endpoint}
		s.add(key, print, nil, "", "", false, false)
		r.receive(s)
	}
	switch {
	case id == "known":
		claim(this, 1)
	case has(id, "another"):
		claim(this, 2)
	}
	if has(id, "taken") {
		claim(other, 1)
	}
	if has(event, "aside") {
		claim(aside, 0)
	}
	if row != "none" {
		r.exec(`insert into onlyonce.webhook_bodies (endpoint, digest, key, seen_at, named)
			select $1, 'd',
			case when starts_with($2, 'this') then $3::uuid when starts_with($2, 'its other') then $4::uuid else $5::uuid end,
			       clock_timestamp() - case when $2 like '%over' then interval '2 hours' else interval '30 minutes' end, $2 like '%named%'`,
			endpoint, row, this, other, third)
	}
	ids := r.count("onlyonce.webhook_ids")
	s := &set{endpoint: endpoint}
	print := int64(1)
	if has(event, "listed") {
		print = 0
	}
	if has(event, "without other") {
		other = ""
	}
	s.add(this, print, []byte("d"), other, aside, has(event, "named"), has(event, "handled"))
	got := r.receive(s)[0]
	if n := r.count("onlyonce.webhook_ids") - ids; (n == 1) != (got == 0 || got == 4) {
		r.t.Errorf("row %s, id %s: found %d, and %d ids are noted", row, id, got, n)
	}
	after = one[string](
		r,
		`select coalesce((select case key when $2 then 'this' when $3 then 'its other' else 'third' end || case when named then ' named'
			else '' end
		|| case when seen_at > clock_timestamp() - interval '20 minutes' then ' new' else ' as it was' end
		from onlyonce.webhook_bodies where endpoint = $1 and seen_at > '-infinity'), 'none')`,
		endpoint,
		this,
		key(2),
	)
	return fmt.Sprint(got), after
}

// W7: a set locks the rows of its bodies in one order, whatever the order of its events, so that
// two sets do not deadlock: while it waits for the first of them, it holds none of the others.
func TestW7SetsLockBodiesInOneOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	event := func(s *set, n int, print int64, digest string) *set {
		s.endpoint = "e"
		s.add(fmt.Sprintf("00000000-0000-4000-8000-%012d", n), print, []byte(digest), "", "", false, false)
		return s
	}
	first, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.Exec(t.Context(), receiveSet, event(&set{}, 1, 1, "a").args()...); err != nil {
		t.Fatal(err)
	}
	waits := make(chan string, 1)
	go func() {
		found, err := r.tryReceive(event(event(&set{}, 2, 2, "b"), 3, 1, "a"))
		waits <- fmt.Sprint(found, err)
	}()
	r.until("the set waits", func() bool {
		return one[bool](r, `select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')`)
	})
	if found := r.receive(event(&set{}, 4, 2, "b")); found[0] != 0 {
		t.Errorf("found %d", found[0])
	}
	if err := first.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-waits; got != "[3 0] <nil>" {
		t.Errorf("the set found %s", got)
	}
}
