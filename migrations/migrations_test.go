package migrations_test

import (
	"bytes"
	"errors"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	return conn
}

// Many processes start at once and migrate: one does, the others find it done.
func TestApplyFromManyProcessesAtOnce(t *testing.T) {
	t.Parallel()
	url := pgtest.EmptyURL(t)
	var mu sync.Mutex
	var applied []int
	var wg sync.WaitGroup
	for range 8 {
		conn := connect(t, url)
		wg.Go(func() {
			versions, err := migrations.Apply(t.Context(), conn)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			applied = append(applied, versions...)
		})
	}
	wg.Wait()
	if len(applied) != migrations.Latest {
		t.Errorf("applied %v, want each of %d versions once", applied, migrations.Latest)
	}
	if v, err := migrations.Version(t.Context(), connect(t, url)); err != nil || v != migrations.Latest {
		t.Errorf("version %d, %v", v, err)
	}
}

// Through PgBouncer in transaction mode: the lock that makes processes take turns ends with its
// transaction.
func TestApplyThroughPgBouncer(t *testing.T) {
	t.Parallel()
	url := pgtest.EmptyURL(t)
	bouncer := pgtest.PgBouncer(t, url, 2)
	var wg sync.WaitGroup
	for range 4 {
		conn := connect(t, bouncer.Exec())
		wg.Go(func() {
			if _, err := migrations.Apply(t.Context(), conn); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	conn := connect(t, bouncer.Exec())
	if err := migrations.Check(t.Context(), conn); err != nil {
		t.Error(err)
	}
	var locks int
	if err := conn.QueryRow(
		t.Context(),
		`select count(*) from pg_locks
			where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())`,
	).Scan(&locks); err != nil ||
		locks != 0 {
		t.Errorf("%d advisory locks left, %v", locks, err)
	}
}

// S1: code accepts its own version and the next, and says what to do about every other.
func TestS1SchemaMustFitTheCode(t *testing.T) {
	t.Parallel()
	empty := pgtest.Empty(t)
	err := migrations.Check(t.Context(), empty)
	if !errors.Is(err, migrations.ErrSchema) || !strings.Contains(err.Error(), "onlyonce migrate") {
		t.Errorf("no schema: %v", err)
	}
	pool := pgtest.DB(t)
	for _, c := range []struct {
		version int
		says    string
	}{
		{migrations.Latest, ""},
		{migrations.Latest + 1, ""},
		{migrations.Latest + 2, "too new"},
	} {
		if _, err := pool.Exec(t.Context(), `insert into onlyonce.schema_version (version) values ($1) on conflict do nothing`,
			c.version); err != nil {
			t.Fatal(err)
		}
		err := migrations.Check(t.Context(), pool)
		wrong := (c.says == "") != (err == nil) ||
			(err != nil && (!errors.Is(err, migrations.ErrSchema) || !strings.Contains(err.Error(), c.says)))
		if wrong {
			t.Errorf("version %d: %v, want %q", c.version, err, c.says)
		}
	}
	if _, err := pool.Exec(t.Context(), `delete from onlyonce.schema_version`); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), `insert into onlyonce.schema_version (version) values (-1)`); err != nil {
		t.Fatal(err)
	}
	if err := migrations.Check(t.Context(), pool); !errors.Is(err, migrations.ErrSchema) || !strings.Contains(err.Error(), "older") {
		t.Errorf("older: %v", err)
	}
}

// What Print writes is the whole schema, for teams with a tool of their own.
func TestPrintedSQLMakesTheSchema(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if err := migrations.Print(&b, 0); err != nil {
		t.Fatal(err)
	}
	conn := connect(t, pgtest.EmptyURL(t))
	if _, err := conn.PgConn().Exec(t.Context(), b.String()).ReadAll(); err != nil {
		t.Fatal(err)
	}
	if err := migrations.Check(t.Context(), conn); err != nil {
		t.Error(err)
	}
	b.Reset()
	if err := migrations.Print(&b, migrations.Latest); err != nil || b.Len() > 0 {
		t.Errorf("%d bytes after the last version, %v", b.Len(), err)
	}
}

// \d+ and \df+ explain themselves.
func TestEverythingIsCommented(t *testing.T) {
	t.Parallel()
	rows, err := pgtest.DB(t).Query(t.Context(), `
		select relname::text from pg_class
		where relnamespace in ('onlyonce'::regnamespace, 'onlyonce_segments'::regnamespace) and relkind in ('r', 'v')
		and obj_description(oid, 'pg_class') is null
		union all
		select proname::text from pg_proc where pronamespace = 'onlyonce'::regnamespace and obj_description(oid, 'pg_proc') is null`)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(names) > 0 {
		t.Errorf("without a comment: %v, %v", names, err)
	}
}

// A list of the tables of schema onlyonce shows those that mean something each: segments of rings
// are in a schema of their own, as many as onlyonce.segments counts. The outbox has two for each.
func TestSegmentsStandApart(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.URL(t))
	tables := func(schema string) []string {
		rows, err := conn.Query(t.Context(), `select tablename::text from pg_tables where schemaname = $1 order by 1`, schema)
		if err != nil {
			t.Fatal(err)
		}
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	own := tables("onlyonce")
	if len(own) > 42 {
		t.Errorf("schema onlyonce has %d tables, want at most 42: %v", len(own), own)
	}
	numbered := regexp.MustCompile(`_\d+$`)
	for _, name := range own {
		if numbered.MatchString(name) {
			t.Errorf("the generated table %s is in schema onlyonce", name)
		}
	}
	var segments int
	if err := conn.QueryRow(
		t.Context(),
		`select count(*) + count(*) filter (where ring = 'outbox') from onlyonce.segments`,
	).Scan(&segments); err != nil {
		t.Fatal(err)
	}
	apart := tables("onlyonce_segments")
	if len(apart) != segments || slices.ContainsFunc(apart, func(name string) bool { return !numbered.MatchString(name) }) {
		t.Errorf("schema onlyonce_segments has %d tables, want %d segments: %v", len(apart), segments, apart)
	}
}

// Functions that look into all segments of the log are not compiled: to the planner they seem
// expensive, and compiling takes a second, each time that they are called.
func TestFunctionsThatAreNotCompiled(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.URL(t))
	for _, function := range []string{"index_calls(integer)", "logged_calls(text, uuid[])"} {
		var off bool
		if err := conn.QueryRow(
			t.Context(),
			`select coalesce('jit=off' = any (proconfig), false) from pg_proc where oid = ('onlyonce.' || $1)::regprocedure`,
			function,
		).Scan(&off); err != nil {
			t.Fatal(err)
		}
		if !off {
			t.Errorf("%s may be compiled", function)
		}
	}
}

// Bodies of calls are compressed by lz4 if the server has it. Otherwise they are stored as they
// are: the server's own compression costs more than it saves.
func TestCompressionOfBatches(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.URL(t))
	_, err := conn.Exec(t.Context(), `create temporary table has_lz4 (v text compression lz4)`)
	want := "l"
	if err != nil {
		want = "stored as it is"
	}
	var columns int
	var other []string
	if err := conn.QueryRow(
		t.Context(),
		`
		select count(*),
		coalesce(array_agg(a.attrelid::regclass || '.' || a.attname)
		filter (where case when a.attstorage = 'e' then 'stored as it is' else a.attcompression::text end <> $1),
		'{}')
		  from pg_attribute a
		  where a.attrelid::regclass::text ~ '^onlyonce(_segments)?\.batches(_\d)?$' and a.attnum > 0 and a.attstorage <> 'p'
		  and a.attname <> 'sink'`,
		want,
	).Scan(
		&columns,
		&other,
	); err != nil {
		t.Fatal(err)
	}
	if columns < 7*20 || len(other) > 0 {
		t.Errorf("%d columns, of which these are not %q: %v", columns, want, other)
	}
}

// S1: processes that migrate at once take turns, whatever their sessions' transactions are by
// default.
func TestS1ManyMigrateAtOnce(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"read committed", "repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			url := pgtest.EmptyURL(t)
			first := connect(t, url)
			lock, err := first.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := lock.Exec(t.Context(), `select pg_advisory_xact_lock(`+names.MigrationLocks+`, 1)`); err != nil {
				t.Fatal(err)
			}
			const processes = 8
			var wg sync.WaitGroup
			var versions atomic.Int64
			for range processes {
				conn := connect(t, url)
				set := `select set_config('default_transaction_isolation', $1, false)`
				if _, err := conn.Exec(t.Context(), set, level); err != nil {
					t.Fatal(err)
				}
				wg.Go(func() {
					applied, err := migrations.Apply(t.Context(), conn)
					if err != nil {
						t.Error(err)
					}
					versions.Add(int64(len(applied)))
				})
			}
			// All have their snapshots, if they take them before the lock.
			pgtest.Until(t, pgtest.Patience(20*time.Second), "all wait", func() bool {
				var waiting int
				err := lock.QueryRow(t.Context(), `select count(*) from pg_locks where locktype = 'advisory' and not granted
					and database = (select oid from pg_database where datname = current_database())`).Scan(&waiting)
				return err == nil && waiting == processes
			})
			if err := lock.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			wg.Wait()
			if n := versions.Load(); n != migrations.Latest {
				t.Errorf("%d versions were applied, want %d", n, migrations.Latest)
			}
		})
	}
}

// T13: a name that several tables have, for example a sink's, has one collation. With two, a join
// by it cannot use the index of the one whose collation is not chosen, and reads all of it.
func TestT13ColumnsOfOneNameHaveOneCollation(t *testing.T) {
	t.Parallel()
	rows, err := pgtest.DB(t).Query(t.Context(), `
		select a.attname || ' of ' || string_agg(c.relname || ' ' || l.collname, ', ' order by c.relname)
		  from pg_attribute a join pg_class c on c.oid = a.attrelid join pg_collation l on l.oid = a.attcollation
		 where c.relnamespace = 'onlyonce'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition and a.attnum > 0
		   and a.attname <> 'name' -- of things that are not joined
		 group by a.attname having count(distinct a.attcollation) > 1`)
	if err != nil {
		t.Fatal(err)
	}
	columns, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(columns) > 0 {
		t.Errorf("%v, %v", columns, err)
	}
}

// S6: a publication for all tables, as Debezium makes by default, keeps no row from being changed
// or deleted: every table of the schema has a replica identity.
func TestS6EveryTableCanBePublished(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.URL(t))
	rows, err := conn.Query(t.Context(), `
		select c.oid::regclass::text, (select min(a.attname)::text from pg_attribute a where a.attrelid = c.oid and a.attnum > 0
		                            and not a.attisdropped and a.attgenerated = '' and a.attidentity = '')
		  from pg_class c
		  where c.relnamespace in ('onlyonce'::regnamespace, 'onlyonce_segments'::regnamespace) and c.relkind in ('r', 'p') order by 1`)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ Name, Column string }])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `create publication everything for all tables`); err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		column := pgx.Identifier{table.Column}.Sanitize()
		// EXPLAIN begins a statement, which is where PostgreSQL refuses it, and changes nothing.
		for _, sql := range []string{
			"explain delete from " + table.Name,
			"explain update " + table.Name + " set " + column + " = " + column,
		} {
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Errorf("%s: %v", sql, err)
			}
		}
	}
	if len(tables) < 50 {
		t.Errorf("%d tables were looked at", len(tables))
	}
}
