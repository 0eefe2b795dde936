package move

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/test/devenv"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// bin has the programs pg_dump, psql and pg_upgrade of PostgreSQL 15.
const bin = "/usr/lib/postgresql/15/bin"

// way moves a database. It returns the new one, and what doctor has to find there.
type way struct {
	name  string
	old   func(t *testing.T) *pgxpool.Pool
	move  func(t *testing.T, old *pgxpool.Pool) *pgxpool.Pool
	finds []string // checks of doctor that fail, and need a rebase; none: transaction ids go on
}

// After each move everything that is behind is named by doctor and raised by one command, and then
// every engine goes on: nothing is lost, and nothing has its effect twice. After pg_upgrade nothing
// is behind.
func TestMoves(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make drill-move")
	}
	if _, err := os.Stat(filepath.Join(bin, "pg_dump")); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("no pg_dump of PostgreSQL 15: %v", err)
		}
		t.Skipf("no pg_dump of PostgreSQL 15: %v", err)
	}
	ways := []way{
		{"logical replication", logicalServer, logically, []string{"history", "sequences"}},
		{"dump and restore of the data alone", server(""), dataOnly(""), []string{"history"}},
		{"pg_upgrade from 15 to 15", nil, nil, nil},
	}
	for _, major := range devenv.PostgresVersions() {
		ways = append(ways, way{"dump of 15 into " + major, server(""), dumped(major), []string{"history"}})
	}
	began := time.Now()
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) { w.play(t) })
	}
	t.Logf("moves ok ways=%d seconds=%.0f ok=%t; not run, for want of binaries: pg_upgrade between other versions",
		len(ways), time.Since(began).Seconds(), !t.Failed())
}

func (w way) play(t *testing.T) {
	p := newProgram(t)
	old := w.old
	move := w.move
	if old == nil {
		u := newUpgrade(t)
		old = u.start
		move = u.move
	}
	from := old(t)
	p.makes(from)
	stop := p.runs(from)
	p.appends(before)
	p.delivers(0, before)
	p.settled(from)
	stop()
	p.once(from, "message", p.fit())
	p.enqueues(from, 5) // they wait to be sent
	to := move(t, from)
	if got := failing(t, to); !slices.Equal(got, w.finds) {
		t.Errorf("doctor: %v fail, want %v", got, w.finds)
	}
	if len(w.finds) > 0 {
		_, err := ops.Rebase(t.Context(), to, ops.By{Reason: "drill"}, ops.RebaseInput{})
		p.must(err)
		if got := failing(t, to); len(got) > 0 {
			t.Errorf("after the rebase doctor finds: %v", got)
		}
	}
	p.appends(waiting)
	stop = p.runs(to)
	defer stop()
	p.settled(to)
	p.appends(after)
	for n := range before { // copies, at other offsets
		if n%unfitEach != 0 {
			p.append(n)
		}
	}
	if copies := p.delivers(0, before); copies != before {
		t.Errorf("of %d webhooks that came before the move %d are known", before, copies)
	}
	if copies := p.delivers(before, p.turns); copies != 0 {
		t.Errorf("%d new webhooks were taken for copies", copies)
	}
	p.settled(to)
	end := p.log.End(0)
	pgtest.Until(t, patience, "copies are found", func() bool {
		return pgtest.One[int64](t, to, `select max(next_offset) from onlyonce.positions`) == end
	})
	p.once(to, "message", p.fit())
	p.once(to, "webhook", p.turns)
}

// failing returns the checks of doctor that say that something moved wrongly.
func failing(t *testing.T, pool *pgxpool.Pool) (checks []string) {
	t.Helper()
	found, err := ops.Examine(t.Context(), pool, ops.ExamineQuestion{})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found.Findings {
		ofMoves := slices.Contains([]string{"history", "sequences", "schema"}, f.Check)
		if f.Level == "fail" && ofMoves && !slices.Contains(checks, f.Check) {
			checks = append(checks, f.Check)
		}
	}
	slices.Sort(checks)
	return checks
}

func start(t *testing.T, o devenv.Options) *pgxpool.Pool {
	t.Helper()
	o.Own = true
	p, err := devenv.StartPostgres(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Stop() })
	return pgtest.Pool(t, p.URL)
}

// server starts a server of a major version; none: of the programs that this machine has.
func server(major string) func(t *testing.T) *pgxpool.Pool {
	return func(t *testing.T) *pgxpool.Pool { return start(t, devenv.Options{PostgresVersion: major}) }
}

func logicalServer(t *testing.T) *pgxpool.Pool {
	return start(t, devenv.Options{PostgresSettings: map[string]string{"wal_level": "logical"}})
}

func address(pool *pgxpool.Pool) string { return pool.Config().ConnString() }

// shell runs a line of docs/operations/restore.md; OLD and NEW are the addresses.
func shell(t *testing.T, old, to, line string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience(2*time.Minute))
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-o", "pipefail", "-c", line)
	cmd.Env = append(os.Environ(), "OLD="+old, "NEW="+to, "PATH="+bin+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
	return string(out)
}

func logically(t *testing.T, old *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	to := server("")(t)
	shell(t, address(old), address(to), `pg_dump --schema-only --no-publications "$OLD" | psql -qX -v ON_ERROR_STOP=1 "$NEW"`)
	shell(t, address(old), address(to), `psql -qX -v ON_ERROR_STOP=1 -c 'create publication move for all tables' "$OLD"`)
	shell(
		t,
		address(old),
		address(to),
		`psql -qX -v ON_ERROR_STOP=1 -c "create subscription move connection '$OLD' publication move" "$NEW"`,
	)
	pgtest.Until(t, patience, "every table is copied", func() bool {
		return pgtest.One[int](t, to, `select count(*) from pg_subscription_rel where srsubstate <> 'r'`) == 0
	})
	end := pgtest.One[string](t, old, `select pg_current_wal_lsn()::text`)
	pgtest.Until(t, patience, "the rest is copied", func() bool {
		return pgtest.One[bool](t, old, `select confirmed_flush_lsn >= $1::text::pg_lsn from pg_replication_slots where slot_name = 'move'`,
			end)
	})
	shell(t, address(old), address(to), `psql -qX -v ON_ERROR_STOP=1 -c 'drop subscription move' "$NEW"`)
	return to
}

func dumped(major string) func(*testing.T, *pgxpool.Pool) *pgxpool.Pool {
	return func(t *testing.T, old *pgxpool.Pool) *pgxpool.Pool {
		t.Helper()
		to := server(major)(t)
		// embedded servers have no lz4
		shell(t, address(old), address(to), `pg_dump --no-toast-compression "$OLD" | psql -qX -1 -v ON_ERROR_STOP=1 "$NEW"`)
		return to
	}
}

// dataOnly restores into a database that was migrated, and whose own rows give way.
func dataOnly(major string) func(*testing.T, *pgxpool.Pool) *pgxpool.Pool {
	return func(t *testing.T, old *pgxpool.Pool) *pgxpool.Pool {
		t.Helper()
		to := server(major)(t)
		(&program{t: t}).makes(to)
		shell(
			t,
			address(old),
			address(to),
			fmt.Sprintf(`psql -qX -v ON_ERROR_STOP=1 -c "%s" "$NEW"`, strings.ReplaceAll(emptySQL, "$", `\$`)),
		)
		shell(t, address(old), address(to), `pg_dump --data-only --disable-triggers "$OLD" | psql -qX -1 -v ON_ERROR_STOP=1 "$NEW"`)
		return to
	}
}

// emptySQL empties what the migration has written, as docs/operations/restore.md has it.
const emptySQL = `do $$ begin execute (select 'truncate ' || string_agg(c.oid::regclass::text, ', ') from pg_class c
where c.relnamespace in ('onlyonce'::regnamespace, 'onlyonce_segments'::regnamespace) and c.relkind in ('r', 'p')); end $$`
