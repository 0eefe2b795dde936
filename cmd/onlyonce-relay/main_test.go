package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/program"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/test/devenv/self"
)

func TestMain(m *testing.M) {
	if os.Getenv(self.Env) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// patience bounds the waits of tests; no result depends on how long it took.
var patience = pgtest.Patience(time.Minute)

// start runs the program in a process of its own.
func start(t *testing.T, env []string, args ...string) *self.Program {
	t.Helper()
	return self.Start(t, patience, env, args...)
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	pgtest.Until(t, patience, what, cond)
}

// fileOf writes a file, and returns its path.
func fileOf(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "relay.json")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// session runs the program as a shell would do.
type session struct {
	t   *testing.T
	url string // of the environment; empty: not set
}

type result struct {
	status   int
	out, err string
}

func (s session) run(args ...string) result {
	s.t.Helper()
	var out, errs bytes.Buffer
	status := run(s.t.Context(), args, &out, &errs, func(name string) string {
		if name == program.EnvPostgres {
			return s.url
		}
		return ""
	})
	return result{status, out.String(), errs.String()}
}

// want fails the test unless the program ended with the status. Each text must be in the output for
// that status: standard output for 0, standard error for others.
func (r result) want(t *testing.T, status int, texts ...string) result {
	t.Helper()
	if r.status != status {
		t.Fatalf("status %d, want %d\nstdout: %s\nstderr: %s", r.status, status, r.out, r.err)
	}
	where := r.out
	if status != statusGood {
		where = r.err
	}
	for _, text := range texts {
		if !strings.Contains(where, text) {
			t.Errorf("%q is not in\n%s", text, where)
		}
	}
	return r
}

// fixture is a database with the schema and a session on it.
type fixture struct {
	session
	pool *pgxpool.Pool
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	pool := pgtest.DB(t)
	return &fixture{session{t: t, url: pool.Config().ConnString()}, pool}
}

// enqueue commits calls of scope checkout.
func (f *fixture) enqueue(calls ...outbox.Call) {
	f.t.Helper()
	err := pgx.BeginFunc(f.t.Context(), f.pool, func(tx pgx.Tx) error {
		for _, c := range calls {
			c.Name = "n"
			c.Scope = "checkout"
			if err := outbox.Enqueue(f.t.Context(), tx, c); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		f.t.Fatal(err)
	}
}

func one[T any](f *fixture, sql string, args ...any) (v T) {
	f.t.Helper()
	return pgtest.One[T](f.t, f.pool, sql, args...)
}

// delivered waits until so many calls are delivered.
func (f *fixture) delivered(n int) {
	f.t.Helper()
	eventually(f.t, "the calls are delivered", func() bool {
		return one[int](f, `select count(*) from onlyonce.calls where state = 'delivered'`) == n
	})
}

// The help names each flag, no line is wider than 80 characters, and -version names the schema.
func TestHelp(t *testing.T) {
	t.Parallel()
	s := session{t: t}
	r := s.run("-help").want(t, statusGood, "-postgres URL", "-config FILE", "-health ADDR", "-metrics ADDR", "-check", "-version")
	for line := range strings.Lines(help[strings.Index(help, example)+len(example):] + help[:strings.Index(help, example)]) {
		if len(line) > 84 {
			t.Errorf("%d characters wide: %s", len(line)-1, line)
		}
	}
	s.run("-version").want(t, statusGood, "onlyonce-relay ", "schema version ")
	s.run("relay").want(t, statusEnvironment, "unexpected argument", "-help")
	s.run("-nothing").want(t, statusEnvironment, "-nothing", "-help")
	s.run("-health", " ").want(t, statusEnvironment, "must not be empty")
	if r.err != "" {
		t.Error(r.err)
	}
}
