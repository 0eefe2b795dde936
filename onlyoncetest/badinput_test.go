package onlyoncetest_test

import (
	"context"
	"errors"
	"flag"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/onlyoncetest"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// verdictOf runs a case that must fail.
func verdictOf(t *testing.T, c onlyoncetest.Case) (*onlyoncetest.Verdict, string) {
	t.Helper()
	x := &fatal{TB: t}
	return onlyoncetest.Run(x, c).Verdict, x.text
}

// A handler that hangs is named with its message. This test changes a bound, and runs alone.
func TestHandlerThatHangs(t *testing.T) {
	defer onlyoncetest.SetPerPlay(8 * time.Second)()
	v, _ := verdictOf(t, with(func(*onlyoncetest.Process) consumer.HandlerFunc {
		return func(ctx context.Context, _ consumer.Tx, _ *consumer.Message) error {
			<-ctx.Done()
			return ctx.Err()
		}
	}))
	if v == nil || v.Kind != kindStuck || !strings.Contains(v.What, "has not returned for messages/0 at 0") {
		t.Errorf("%v", v)
	}
}

// A handler that ends the process is named with its message and history, if Run plays in a child.
// The child runs this test too, and ends in it.
func TestHandlerThatExits(t *testing.T) {
	if err := flag.Set("onlyonce.exec", "true"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = flag.Set("onlyonce.exec", "false") }()
	c := after(func(_ context.Context, _ consumer.Tx, m *consumer.Message) error {
		if string(m.Value) == "1" {
			os.Exit(3)
		}
		return nil
	})
	v, text := verdictOf(t, c)
	good := v != nil &&
		v.Kind == kindExited &&
		strings.Contains(v.What, "exit status 3") &&
		strings.Contains(v.What, "the handler for messages/0 at 1") &&
		v.History == "nothing"
	if !good {
		t.Errorf("%v", v)
	}
	if !strings.Contains(text, "again: go test -run '^TestHandlerThatExits$' -onlyonce.exec -onlyonce.history='nothing'") {
		t.Error(text)
	}
}

// A child reports what a Run in this process would.
func TestRunInAChild(t *testing.T) {
	if err := flag.Set("onlyonce.exec", "true"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = flag.Set("onlyonce.exec", "false") }()
	good := after(func(context.Context, consumer.Tx, *consumer.Message) error { return nil })
	good.Budget = time.Millisecond
	if rep := onlyoncetest.Run(t, good); rep.Points == 0 || rep.Left == 0 || rep.Verdict != nil {
		t.Errorf("%+v", rep)
	}
	v, _ := verdictOf(t, after(func(context.Context, consumer.Tx, *consumer.Message) error { panic("a bug") }))
	if v == nil || v.Kind != kindParkedWrongly || !strings.Contains(v.What, "a bug") {
		t.Errorf("%v", v)
	}
	if v, text := verdictOf(t, onlyoncetest.Case{Messages: three()}); v != nil || !strings.Contains(text, "Case.Start: must be set") {
		t.Errorf("%v %s", v, text)
	}
}

// A role that is no superuser gets a new database for each history, and failovers are printed as
// not covered. One that may not create databases is told what it needs. The server is chosen once
// for a process, so each role has a process of its own.
func TestRoles(t *testing.T) {
	t.Parallel()
	for role, want := range map[string]struct{ right, says string }{
		"onlyoncetest_creator": {"createdb", "not covered: failovers (the role of ONLYONCE_POSTGRES_URL is no superuser)"},
		"onlyoncetest_reader":  {"nocreatedb", "the role has no right to create databases: grant it with ALTER ROLE ... CREATEDB"},
	} {
		t.Run(role, func(t *testing.T) {
			admin := pgtest.Pool(t, pgtest.ServerURL(t))
			if _, err := admin.Exec(t.Context(), `create role `+role+` login password 'x' `+want.right); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { tidyRole(t, admin, role) })
			address, err := url.Parse(pgtest.ServerURL(t))
			if err != nil {
				t.Fatal(err)
			}
			address.User = url.UserPassword(role, "x")
			child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAsRole$", "-test.v", "-as-role")
			child.Env = append(os.Environ(), "ONLYONCE_POSTGRES_URL="+address.String())
			out, err := child.CombinedOutput()
			if !strings.Contains(string(out), want.says) || (err == nil) != (want.right == "createdb") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// tidyRole drops a role and its databases.
func tidyRole(t *testing.T, admin *pgxpool.Pool, role string) {
	t.Helper()
	ctx := context.Background()
	rows, err := admin.Query(ctx, `select datname from pg_database where datdba = $1::regrole`, role)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for _, name := range names {
		_, dropped := admin.Exec(ctx, `drop database `+pgx.Identifier{name}.Sanitize()+` with (force)`)
		err = errors.Join(err, dropped)
	}
	_, dropped := admin.Exec(ctx, `drop role `+role)
	if err = errors.Join(err, dropped); err != nil {
		t.Error(err)
	}
}

var asRole = flag.Bool("as-role", false, "set by TestRoles in its child")

// TestAsRole is what the children of TestRoles run.
func TestAsRole(t *testing.T) {
	if !*asRole {
		t.Skip("TestRoles runs it in a process with another server")
	}
	c := after(func(context.Context, consumer.Tx, *consumer.Message) error { return nil })
	c.Budget = time.Second
	onlyoncetest.Run(t, c)
}

// Histories are shrunk to what fails: also if it needs several parts that are far from each other.
func TestDDMin(t *testing.T) {
	t.Parallel()
	all := make([]int, 40)
	for i := range all {
		all[i] = i
	}
	for _, need := range [][]int{{0}, {39}, {17}, {3, 30}, {0, 1, 38, 39}, {5, 6, 7}} {
		asked := 0
		got := onlyoncetest.DDMin(all, func(part []int) bool {
			asked++
			if len(part) == 0 || len(part) == len(all) {
				t.Errorf("asked for %d of %d", len(part), len(all))
			}
			return !slices.ContainsFunc(need, func(n int) bool { return !slices.Contains(part, n) })
		})
		if !slices.Equal(got, need) {
			t.Errorf("%v, want %v", got, need)
		}
		if len(need) == 1 && asked > 12 {
			t.Errorf("%d questions for one of 40", asked)
		}
	}
}

// A case that cannot be played is an error that names the field, and no verdict.
func TestCasesThatCannotBePlayed(t *testing.T) {
	t.Parallel()
	start := onlyoncetest.Consume(consumer.HandlerFunc(sound), consumer.Config{})
	for want, c := range map[string]onlyoncetest.Case{
		"Case.Start: must be set":          {Messages: three()},
		"Case.Messages: must not be empty": {Start: start},
		"Case.Requests: must not be empty": {Serve: func(*onlyoncetest.Process) (http.Handler, onlyoncetest.Runner, error) {
			return nil, nil, nil
		}},
		"Case.Mask: must be a regular": {Start: start, Messages: three(), Mask: "("},
		"Case.Migrate: no tables for you": {
			Start:    start,
			Messages: three(),
			Migrate:  func(context.Context, *pgxpool.Pool) error { return errors.New("no tables for you") },
		},
		"Case.Migrate: ERROR: relation \"no\"": {
			Start:    start,
			Messages: three(),
			Migrate: func(ctx context.Context, p *pgxpool.Pool) error {
				_, err := p.Exec(ctx, `select * from no`)
				return err
			},
		},
	} {
		if v, text := verdictOf(t, c); v != nil || !strings.Contains(text, want) {
			t.Errorf("%q, want %q; %v", text, want, v)
		}
	}
}

// A program that does not use the process's pool is not proven.
func TestPoolThatIsNotUsed(t *testing.T) {
	t.Parallel()
	other := onlyoncetest.Pool(t)
	if err := migrate(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	c := onlyoncetest.Case{Requests: requests(), Serve: func(*onlyoncetest.Process) (http.Handler, onlyoncetest.Runner, error) {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = other.Exec(r.Context(), insertSQL, "x") }), nil, nil
	}}
	if v, _ := verdictOf(t, c); v == nil || v.Kind != kindNotUsed {
		t.Errorf("%v", v)
	}
}

// DDL in a handler, and tables of many rows, are played as anything else.
func TestTablesOfAllSorts(t *testing.T) {
	t.Parallel()
	c := after(func(ctx context.Context, tx consumer.Tx, _ *consumer.Message) error {
		_, err := tx.Exec(ctx, `create table if not exists made (n int)`)
		if err == nil {
			_, err = tx.Exec(ctx, `update many set n = n + 1 where id = 7`)
		}
		return err
	})
	c.Migrate = func(ctx context.Context, pool *pgxpool.Pool) error {
		if err := migrate(ctx, pool); err != nil {
			return err
		}
		_, err := pool.Exec(ctx, `create table many (id int, n int); insert into many select i, 0 from generate_series(1, 100000) i`)
		return err
	}
	c.Messages = c.Messages[:1]
	if v, text := verdictOf(t, c); v != nil || text != "" {
		t.Errorf("%v %s", v, text)
	}
}
