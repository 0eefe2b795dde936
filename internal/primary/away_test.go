package primary_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// What says that the database does not answer is told apart from what it has answered, and keeps
// its text and its cause.
func TestMark(t *testing.T) {
	t.Parallel()
	c, err := pgx.ParseConfig("postgres://stock@10.0.0.1:6000/shop")
	if err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct {
		err  error
		want string
	}{
		"no answer in time":         {fmt.Errorf("fence: %w", context.DeadlineExceeded), "the database does not answer"},
		"the network":               {&net.OpError{Op: "read", Err: errors.New("reset")}, "the database does not answer"},
		"the connection broke":      {io.ErrUnexpectedEOF, "the database does not answer"},
		"a standby":                 {&pgconn.PgError{Code: "25006"}, "the database takes no writes"},
		"an answer":                 {&pgconn.PgError{Code: "23505"}, ""},
		"answered, and hung up":     {errors.Join(&pgconn.PgError{Code: "28P01"}, &net.OpError{Op: "read", Err: errors.New("EOF")}), ""},
		"a statement took too long": {&pgconn.PgError{Code: "57014"}, ""},
		"no row":                    {pgx.ErrNoRows, ""},
		"the process stops":         {context.Canceled, ""},
	} {
		got := primary.Mark(c, x.err)
		away, is := errors.AsType[*primary.Away](got)
		if is != (x.want != "") || is && away.What != x.want {
			t.Errorf("%s: %#v", name, got)
			continue
		}
		if !errors.Is(got, x.err) || got.Error() != x.err.Error() {
			t.Errorf("%s: it lost its cause or its text: %v", name, got)
		}
		if !is {
			continue
		}
		if _, at := away.Outage(); at.String() != "database=10.0.0.1:6000/shop" {
			t.Errorf("%s: of %s", name, at)
		}
		if any(primary.Mark(c, got)) != any(got) { // not wrapped twice
			t.Errorf("%s: it is marked twice", name)
		}
	}
	if primary.Mark(c, nil) != nil {
		t.Error("nothing is an outage")
	}
}

// A pool without a free connection says nothing of the database. One that cannot connect does, and
// so does the wait for a connection while others have found it silent. It answers again: one line.
func TestAcquireOfADatabaseThatIsAway(t *testing.T) {
	t.Parallel()
	base := pgtest.DB(t)
	cfg := base.Config().Copy()
	cfg.MaxConns = 1
	gone := false
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if gone {
			return nil, &net.OpError{Op: "dial", Err: errors.New("refused")}
		}
		return dial(ctx, network, addr)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	log, text := pgtest.Logged()
	p := primary.Of(pool, log)
	isAway := func() bool {
		ended, cancel := context.WithTimeout(t.Context(), 1)
		defer cancel()
		_, err := p.Acquire(ended)
		_, away := errors.AsType[*primary.Away](err)
		return away
	}
	only, err := p.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if isAway() {
		t.Error("a pool that is used up counts as a database that is away")
	}
	_ = only.Hijack().Close(t.Context())
	gone = true
	if _, err := p.Exec(t.Context(), `select 1`); err == nil {
		t.Fatal("it answers")
	} else if _, away := errors.AsType[*primary.Away](err); !away {
		t.Errorf("it cannot be reached: %v", err)
	}
	gone = false
	only, err = p.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !isAway() {
		t.Error("a wait for a connection while the database is away counts as something else")
	}
	only.Release()
	for range 2 {
		if _, err := p.Exec(t.Context(), `select 1`); err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(text(), "the database answers again"); n != 1 {
		t.Errorf("%d lines:\n%s", n, text())
	}
}
