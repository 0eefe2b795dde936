package inbox_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/inbox"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// lines is a log that may be read while it is written.
type lines struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(b)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.all.String(), text)
}

// If a horizon is shortened below what a running process needs, that is reported, once each time.
func TestK6HorizonIsShortenedMeanwhile(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var told lines
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	looks := inbox.Counted(r.pool)
	go func() {
		defer close(ended)
		inbox.Watch(ctx, looks, slog.New(slog.NewTextHandler(&told, nil)), time.Millisecond, time.Minute, []inbox.Need{{
			Ring:   "consumer_keys",
			Copies: time.Hour,
			Whose:  "Config.CopiesWithin",
		}})
	}()
	const line = "declared=Config.CopiesWithin"
	looked := func() {
		t.Helper()
		from := looks.N.Load()
		r.until("two more looks", func() bool { return looks.N.Load() > from+2 })
	}
	for i := range 2 {
		looked()
		if n := told.count(line); n != i {
			t.Fatalf("told of it %d times, and not %d, where it holds", n, i)
		}
		r.exec(`update onlyonce.rings set horizon = '59 minutes' where name = 'consumer_keys'`)
		r.until("it is told of", func() bool { return told.count(line) == i+1 })
		looked()
		if n := told.count(line); n != i+1 {
			t.Fatalf("told of it %d times, and not %d", n, i+1)
		}
		r.exec(`update onlyonce.rings set horizon = '1 hour' where name = 'consumer_keys'`)
	}
	cancel()
	pgtest.Receive(t, patience, "Run ends", ended)
}

// T15: a day is 24 hours where the clocks go forward, and a month is 30 days.
func TestT15Durations(t *testing.T) {
	t.Parallel()
	cfg := pgtest.DB(t).Config()
	cfg.ConnConfig.RuntimeParams["timezone"] = "America/Los_Angeles"
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	day := 24 * time.Hour
	lasts := func(of string) time.Duration {
		t.Helper()
		return time.Duration(
			pgtest.One[float64](
				t,
				pool,
				`select extract(epoch from b + `+of+` - b)::float8 from (select timestamptz '2026-03-08 00:00-08' as b) x`,
			),
		) * time.Second
	}
	if got := lasts(`interval '1 day'`); got != 23*time.Hour {
		t.Fatalf("the day on which clocks go forward has %v", got)
	}
	horizon := `(select horizon from onlyonce.rings where name = 'consumer_short_keys')`
	keep := `(select keep from onlyonce.retentions where kind = 'parked')`
	if got := lasts(horizon); got != day {
		t.Errorf("the horizon of a day in a new database is %v", got)
	}
	if got := lasts(keep); got != 30*day {
		t.Errorf("the retention of 30 days in a new database is %v", got)
	}
	pgtest.Exec(t, pool, `update onlyonce.rings set horizon = '1 mon' where name = 'consumer_short_keys'`)
	pgtest.Exec(t, pool, `update onlyonce.retentions set keep = '2 days' where kind = 'parked'`)
	if got := lasts(horizon); got != 30*day {
		t.Errorf("a horizon of a month is %v", got)
	}
	if got := lasts(keep); got != 2*day {
		t.Errorf("a retention of 2 days is %v", got)
	}
	for days, holds := range map[time.Duration]bool{29: true, 30: true, 31: false} {
		err := inbox.CheckHorizon(t.Context(), pool, inbox.Need{Ring: "consumer_short_keys", Copies: days * day})
		if (err == nil) != holds || err != nil && !errors.Is(err, inbox.ErrHorizon) {
			t.Errorf("%d days: %v", days, err)
		}
	}
}

// T15: no column of ours has a time without its zone. A day is one of UTC:
// webhook.MaxQuarantineBytes.
func TestT15Columns(t *testing.T) {
	t.Parallel()
	const sql = `select coalesce(string_agg(table_name || '.' || column_name, ' ' order by 1), '') from (
		select table_name::text, column_name::text from information_schema.columns
		 where table_schema in ('onlyonce', 'onlyonce_segments')
		 and data_type in ('timestamp without time zone', 'time without time zone', 'date')) c`
	if got := pgtest.One[string](t, pgtest.DB(t), sql); got != "webhook_endpoints.aside_on" {
		t.Error(got)
	}
}
