// Growth runs the engines' statements whose work grows with the data on tables of ten million rows:
// each must end within the bound, or it is repeated for ever and nothing is done.
//
//	make growth ROWS=10000000
//
// A scene fills a database. Each of its statements, read from the engine's own source, is then run
// several times, each time in a transaction of its own with the bound as statement_timeout. It
// passes if it ends within the bound at least once, and, if it is one of many that do some work in
// portions, if less work is left each time that it ended. The first tries may fail, for example
// because the pages are not in memory yet.
//
// It prints one line a statement.
//
// With -shapes it runs no statement by itself. It lets all parts of onlyonce work on databases of
// another kind: as outages, rates, retention and old snapshots leave them. auto_explain says what
// each statement reads, those in functions and triggers too, so none has to be listed. A statement
// may read 50 pages, and 8 more for each row that it returns or writes (each index of a table that
// is written counts as a row), or that it was asked for in an array; exception.go has the few that
// may read more.
//
//	make growth SHAPES=all SEED=1
//
// It ends with a line that begins with "growth ok" or "growth BREACH".
//
// Exit status: 0 all pass; 1 one does not; 2 usage or environment.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/test/devenv"
	"github.com/onlyonce/onlyonce/test/screen"
)

// tries is how often a statement is run.
const tries = 8

// rig is one run.
type rig struct {
	rows   int
	bound  time.Duration
	source *sources
	conn   *pgx.Conn
}

func main() {
	rows := flag.Int("rows", 10_000_000, "rows of each table")
	bound := flag.Duration("bound", time.Second, "statement_timeout")
	only := flag.String("only", "", "run the scenes whose names contain this")
	spreads := flag.String("shapes", "", "play so many shapes instead of the scenes, or all")
	seed := flag.Uint64("seed", 1, "draws the shapes")
	plans := flag.String("plans", "", "a folder for the plans of the statements in the shape in which they read most")
	verbose := flag.Bool("v", false, "print what the parts log, and the statements that read most")
	flag.Parse()
	if *spreads != "" {
		os.Exit(playShapes(*spreads, spread{rows: *rows, seed: *seed, plans: *plans, verbose: *verbose}))
	}
	failed, err := run(context.Background(), ".", *rows, *bound, *only)
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "growth:", err)
		os.Exit(2)
	case failed > 0:
		fmt.Printf("growth: %d statements make no progress at %s rows within %v\n", failed, screen.Count(int64(*rows)), *bound)
		os.Exit(1)
	}
	fmt.Printf("growth ok rows=%d bound=%v\n", *rows, *bound)
}

// playShapes plays so many shapes, or all, and returns the exit status.
func playShapes(count string, s spread) int {
	n := 0
	if count != "all" {
		var err error
		if n, err = strconv.Atoi(count); err != nil || n < 1 {
			fmt.Fprintln(os.Stderr, "growth: -shapes is a number of 1 or more, or all")
			return 2
		}
	}
	s.root = "."
	s.out = os.Stdout
	s.shapes = shapes(n, s.seed)
	ok, err := s.run(context.Background())
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "growth:", err)
		return 2
	case !ok:
		return 1
	}
	return 0
}

// run plays the scenes whose names contain only, on a server of its own. It returns how many
// statements do not pass. root is the folder of the module.
func run(ctx context.Context, root string, rows int, bound time.Duration, only string) (failed int, err error) {
	server, err := devenv.StartPostgres(ctx, devenv.Options{Own: true, PostgresSettings: map[string]string{
		"fsync":                "off",
		"full_page_writes":     "off",
		"synchronous_commit":   "off",
		"max_wal_size":         "2GB",
		"wal_level":            "minimal",
		"max_wal_senders":      "0",
		"maintenance_work_mem": "1GB",
		"autovacuum":           "off",
	}})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	for _, s := range scenes {
		if !strings.Contains(s.name, only) {
			continue
		}
		faults, err := play(ctx, server.URL, s, &rig{rows: rows, bound: bound, source: newSources(root)})
		if err != nil {
			return 0, err
		}
		failed += faults
	}
	return failed, nil
}

// play fills the server's database with our schema anew and runs a scene's statements. It returns
// how many do not pass.
func play(ctx context.Context, address string, s scene, r *rig) (failed int, err error) {
	fmt.Printf("%s, %s rows\n", s.name, screen.Count(int64(r.rows)))
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	if _, err := conn.Exec(ctx, `drop schema if exists onlyonce, onlyonce_segments cascade`); err != nil {
		return 0, err
	}
	if _, err := migrations.Apply(ctx, conn); err != nil {
		return 0, err
	}
	r.conn = conn
	begun := time.Now()
	drop, create, err := indexes(ctx, conn)
	if err != nil {
		return 0, err
	}
	fill := append([]string{"set session_replication_role = replica", drop}, s.fill...)
	for _, sql := range append(fill, create, "set session_replication_role = origin", "vacuum analyze") {
		if _, err := conn.Exec(ctx, r.sized(sql), pgx.QueryExecModeSimpleProtocol); err != nil {
			return 0, fmt.Errorf("filling %s: %w\n%s", s.name, err, sql)
		}
	}
	fmt.Printf("  filled in %.0f s\n", time.Since(begun).Seconds())
	for _, p := range s.probes {
		ok, err := r.probe(ctx, p)
		if err != nil {
			return failed, fmt.Errorf("%s, %s: %w", s.name, p.sql, err)
		}
		if !ok {
			failed++
		}
	}
	return failed, nil
}

// indexes returns statements that drop and that create the schema's indexes that are not unique:
// one that is made of rows that are there costs a fraction of one that is kept while they come.
func indexes(ctx context.Context, conn *pgx.Conn) (drop, create string, err error) {
	err = conn.QueryRow(ctx, `
  select string_agg('drop index ' || i.indexrelid::regclass, ';'),
         string_agg(replace(pg_get_indexdef(i.indexrelid), ' ON ONLY ', ' ON '), ';')
    from pg_index i join pg_class c on c.oid = i.indexrelid
   where c.relnamespace in ('onlyonce'::regnamespace, 'onlyonce_segments'::regnamespace)
     and not i.indisunique
     and not c.relispartition`).Scan(
		&drop,
		&create,
	)
	return drop, create, err
}

// probe runs a statement several times, and prints and returns how it went.
func (r *rig) probe(ctx context.Context, p probe) (ok bool, err error) {
	sql, err := r.source.statement(p.sql)
	if err != nil {
		return false, err
	}
	folder, _, _ := strings.Cut(p.sql, ".")
	var times []string
	ended := 0
	progressed := 0
	left, err := r.left(ctx, p)
	if err != nil {
		return false, err
	}
	for range tries {
		begun := time.Now()
		err := r.bounded(ctx, settings[folder], sql, p.args)
		took := time.Since(begun)
		switch {
		case guard.SQLState(err) == "57014":
			times = append(times, "-")
			continue
		case err != nil:
			return false, err
		}
		ended++
		times = append(times, fmt.Sprintf("%.0f", float64(took.Microseconds())/1000))
		now, err := r.left(ctx, p)
		if err != nil {
			return false, err
		}
		if now < left || now == 0 {
			progressed++
		}
		left = now
	}
	ok = ended > 0 && progressed == ended
	verdict := "ok"
	switch {
	case ended == 0:
		verdict = "NEVER ENDS WITHIN THE BOUND"
	case !ok:
		verdict = "MAKES NO PROGRESS"
	}
	fmt.Printf("  %-44s %s (ms: %s)\n", cmp.Or(p.name, p.sql), verdict, strings.Join(times, " "))
	return ok, nil
}

// settings are those of an engine's own transactions, by the folder that its constants are in.
var settings = map[string][]string{
	"outbox":               {"enable_seqscan = off", "plan_cache_mode = force_generic_plan", "jit = off"},
	"internal/ring":        {"enable_seqscan = off", "enable_bitmapscan = off", "enable_sort = off", "jit = off"},
	"internal/eventsource": {"enable_seqscan = off", "enable_sort = off"},
}

// bounded runs a statement in a transaction of its own, under the bound.
func (r *rig) bounded(ctx context.Context, settings []string, sql string, args []any) error {
	return pgx.BeginFunc(ctx, r.conn, func(tx pgx.Tx) error {
		for _, s := range append([]string{fmt.Sprintf("statement_timeout = %d", r.bound.Milliseconds())}, settings...) {
			if _, err := tx.Exec(ctx, "set local "+s); err != nil {
				return err
			}
		}
		rows, err := tx.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		rows.Close()
		return rows.Err()
	})
}

// sized puts the number of rows into a statement.
func (r *rig) sized(sql string) string { return strings.ReplaceAll(sql, "ROWS", fmt.Sprint(r.rows)) }

// left is how much work is left; 0 if the statement does none.
func (r *rig) left(ctx context.Context, p probe) (n int64, err error) {
	if p.left == "" {
		return 0, nil
	}
	return n, r.conn.QueryRow(ctx, r.sized(p.left)).Scan(&n)
}
