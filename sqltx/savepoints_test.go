package sqltx_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/sqltx"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// steps are the statements whose sequences TestT7WithinIsATransaction plays.
func steps() (all []string) {
	for _, name := range []string{"a", "A", `"a"`, `"A"`} {
		all = append(all, "savepoint "+name, "rollback to savepoint "+name, "release savepoint "+name)
	}
	return append(all, "write", "failing write")
}

// T7: what Within makes of savepoints is what the server makes of them. For every sequence, each
// statement fails or not as in a transaction of the server's, and the same rows are left.
//
// A sequence that goes on contains the shorter ones. So the long cases are all sequences of five,
// and -short plays all of three.
func TestT7WithinIsATransaction(t *testing.T) {
	t.Parallel()
	all := steps()
	length := 3
	if !testing.Short() {
		length = 5
	}
	for _, first := range all {
		t.Run(first, func(t *testing.T) {
			t.Parallel()
			p := newPair(t)
			for _, second := range all {
				if length == 5 && !pgtest.Long("savepoints "+first+" "+second) {
					continue
				}
				p.sequences([]string{first, second}, all, length)
			}
		})
	}
}

// T7: names, words and comments around them are read as the server reads them. The pairs differ in
// how the server tells them apart.
func TestT7WithinReadsNames(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("n", 63)
	p := newPair(t)
	for _, names := range [][2]string{
		{"sp", "SP"}, {`"sp"`, "Sp"}, {`"SP"`, "sp"}, {"a$1", "A$1"}, {"_a", "_A"}, {`"a""b"`, `"a""b"`}, {`"a""b"`, `"ab"`},
		{long + "1", long + "2"}, {long, `"` + long + `9"`}, {`"é"`, `"É"`}, {"savepoint", "Savepoint"}, {`"savepoint"`, "SAVEPOINT"},
		{"/* a */ a", "a -- a comment"}, {"a /* /* nested */ ' */", "a;;"}, {`"a b"`, `"a  b"`}, {`" a"`, `"a"`}, {"work", "transaction"},
		{`"--a"`, `"/*a*/"`}, {"\n\ta\r\n", "A"}, {`"a;"`, `"a"`},
	} {
		for _, back := range []string{
			"rollback to savepoint %s",
			"ROLLBACK TO %s",
			"rollback work to %s",
			"RollBack Transaction To SavePoint %s",
			"/* rollback */ rollback to--\n%s",
			"release savepoint %s",
			"RELEASE %s",
		} {
			for _, ends := range names {
				p.compare([]string{"savepoint " + names[0], "write", "SavePoint " + names[1], "write", fmt.Sprintf(back, ends), "write"})
			}
		}
	}
	// What is not read is refused, and never taken for something else.
	for _, text := range []string{
		`savepoint U&"a"`,
		"savepoint é",
		"savepoint aé",
		`savepoint "` + strings.Repeat("é", 32) + `"`,
		`savepoint ""`,
		"savepoint a b",
		`savepoint "a"b`,
		"savepoint 1",
		"savepoint",
		"rollback",
		"rollback to",
		"rollback work",
		"rollback and chain",
		"release",
		"savepoint a; commit",
		"rollback to a; commit",
		"rollback to savepoint a b",
		`savepoint "a`,
		"savepoint a&",
		"commit",
		"release savepoint a b",
	} {
		p.within([]string{"write", text, "rollback to a"})
		if !errors.Is(p.err, guard.ErrControl) {
			t.Errorf("%q: %v", text, p.err)
		}
	}
}

// pair plays sequences in two transactions that never commit.
type pair struct {
	t             *testing.T
	real, guarded *pgx.Conn
	played        int
	err           error // of the last guarded transaction
}

func newPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{t: t}
	url := pgtest.EmptyURL(t)
	for _, conn := range []**pgx.Conn{&p.real, &p.guarded} {
		var err error
		if *conn, err = pgx.Connect(t.Context(), url); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = (*conn).Close(context.WithoutCancel(t.Context())) })
	}
	p.empty()
	return p
}

// empty begins with tables that have no dead rows.
func (p *pair) empty() {
	p.t.Helper()
	for _, conn := range []*pgx.Conn{p.real, p.guarded} {
		if _, err := conn.Exec(
			p.t.Context(),
			`drop table if exists pg_temp.effects; create temp table effects (v text not null)`,
		); err != nil {
			p.t.Fatal(err)
		}
		if err := conn.DeallocateAll(p.t.Context()); err != nil {
			p.t.Fatal(err)
		}
	}
}

// sequences compares all of that length that begin so.
func (p *pair) sequences(begin, all []string, length int) {
	p.t.Helper()
	if len(begin) == length {
		p.compare(begin)
		return
	}
	for _, next := range all {
		p.sequences(append(slices.Clip(begin), next), all, length)
	}
}

func (p *pair) compare(texts []string) {
	p.t.Helper()
	if p.played++; p.played%5000 == 0 {
		p.empty()
	}
	want := p.transaction(texts)
	if got := p.within(texts); got != want {
		p.t.Errorf("%q:\nWithin:      %s\ntransaction: %s", texts, got, want)
	}
}

// transaction plays it as it is.
func (p *pair) transaction(texts []string) string {
	p.t.Helper()
	ctx := p.t.Context()
	var seen transcript
	if _, err := p.real.Exec(ctx, "begin"); err != nil {
		p.t.Fatal(err)
	}
	for i, text := range texts {
		_, err := p.real.Exec(ctx, statement(text, i))
		seen.add(err)
	}
	var left string
	seen.end(p.real.QueryRow(ctx, leftSQL).Scan(&left), left)
	if _, err := p.real.Exec(ctx, "rollback"); err != nil {
		p.t.Fatal(err)
	}
	return seen.String()
}

// within plays it in a handler's transaction.
func (p *pair) within(texts []string) string {
	p.t.Helper()
	ctx := p.t.Context()
	var seen transcript
	tx := guard.Begin(p.guarded)
	err := sqltx.Within(ctx, tx, func(ctx context.Context, q *sql.Tx) error {
		for i, text := range texts {
			_, err := q.ExecContext(ctx, statement(text, i))
			seen.add(err)
		}
		var left string
		seen.end(q.QueryRowContext(ctx, leftSQL).Scan(&left), left)
		return nil
	})
	p.err = err
	if failed := tx.Failure(); failed != nil {
		p.err = failed
	}
	tx.Rollback(pgtest.Patience(10 * time.Second))
	return seen.String()
}

const leftSQL = `select coalesce(string_agg(v, ' ' order by v), '') from effects`

// statement is the text of a step.
func statement(text string, at int) string {
	switch text {
	case "write":
		return fmt.Sprintf("insert into effects values ('%d')", at)
	case "failing write":
		return "insert into effects values ('never'), (null)"
	}
	return text
}

// transcript is what the program sees of a transaction.
type transcript struct {
	strings.Builder
	failed bool
}

// add adds a statement's outcome. While a transaction has failed, the server answers 25P02 and a
// handler's transaction the first error: both say that the statement did nothing.
func (s *transcript) add(err error) {
	var server *pgconn.PgError
	switch {
	case err == nil:
		s.failed = false
		_, _ = s.WriteString("ok ")
	case s.failed:
		_, _ = s.WriteString("failed ")
	case errors.As(err, &server):
		s.failed = true
		_, _ = s.WriteString(server.Severity + " " + server.Code + " ")
	default:
		s.failed = true
		_, _ = fmt.Fprintf(s, "%v ", err)
	}
}

func (s *transcript) end(err error, left string) {
	if err != nil {
		_, _ = s.WriteString("and nothing can commit")
		return
	}
	_, _ = fmt.Fprintf(s, "and %q is left", left)
}
