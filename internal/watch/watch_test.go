package watch_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/watch"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// watched returns watched time, in seconds after a time.
func watched(t *testing.T, pool *pgxpool.Pool, since time.Time) (s float64) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), `select extract(epoch from at - $1)::float8 from onlyonce.watched`, since).Scan(&s); err != nil {
		t.Fatal(err)
	}
	return s
}

// T11: watched time follows the clock between half and twice as fast as the time that passes for
// who watches, and never goes back.
func TestT11WatchedTimeIsBounded(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	var start time.Time
	if err := pool.QueryRow(
		t.Context(),
		`update onlyonce.watched set at = clock_timestamp() - interval '1 minute' returning at`,
	).Scan(&start); err != nil {
		t.Fatal(err)
	}
	clock := pgtest.ShiftClock(t, pool)
	look := func(seen, elapsed float64) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), `select onlyonce.watch($1::timestamptz + $2 * interval '1 second', $3 * interval '1 second')`,
			start, seen, elapsed); err != nil {
			t.Fatal(err)
		}
	}
	// The clock is 60 s ahead of watched time by itself, and as much more as ahead says.
	for _, c := range []struct {
		name                 string
		ahead                string
		seen, elapsed, after float64
	}{
		{"behind the clock: twice as fast", "0", 0, 10, 20},
		{"a week ahead", "7 days", 20, 25, 70},
		{"another process that saw what the first did: not once more", "7 days", 20, 25, 70},
		{"a week back: half as fast", "-7 days", 70, 100, 120},
		{"a process that was paused does not take it back", "-7 days", 20, 10, 120},
	} {
		clock(c.ahead)
		look(c.seen, c.elapsed)
		if got := watched(t, pool, start); got != c.after {
			t.Errorf("%s: at %v, want %v", c.name, got, c.after)
		}
	}
	clock("1 hour")
	look(120, 3600)
	if got := watched(t, pool, start); got < 3660 || got > 7000 {
		t.Errorf("a clock within the bounds: at %v, want the clock's time", got)
	}
}

// T11: a process that starts while the clock is ahead believes the row, and not the clock.
func TestT11ProcessThatStartsWhileTheClockIsAhead(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	var start time.Time
	if err := pool.QueryRow(t.Context(), `update onlyonce.watched set at = clock_timestamp() returning at`).Scan(&start); err != nil {
		t.Fatal(err)
	}
	pgtest.ShiftClock(t, pool)("7 days")
	began := time.Now()
	c := watch.New(pool, time.Nanosecond)
	if err := c.Look(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := watched(t, pool, start); s != 0 {
		t.Errorf("the first look has moved it by %v s", s)
	}
	for range 5 {
		if err := c.Look(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if s := watched(t, pool, start); s <= 0 || s > 2*time.Since(began).Seconds() {
		t.Errorf("it has moved by %v s within %v", s, time.Since(began))
	}
}
