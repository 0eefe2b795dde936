package onlyoncetest_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/onlyoncetest"
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
	v, _ := verdictOf(t, with(func(*onlyoncetest.Process) consumer.Handler {
		return func(ctx context.Context, _ consumer.Tx, _ *consumer.Message) error {
			<-ctx.Done()
			return ctx.Err()
		}
	}))
	if v == nil || v.Kind != onlyoncetest.Stuck || !strings.Contains(v.What, "has not returned for messages/0 at 0") {
		t.Errorf("%v", v)
	}
}

// A case that cannot be played is an error that names the field, and no verdict.
func TestCasesThatCannotBePlayed(t *testing.T) {
	t.Parallel()
	start := onlyoncetest.Consume(sound, consumer.Config{})
	for want, c := range map[string]onlyoncetest.Case{
		"Case.Start: must be set":          {Messages: three()},
		"Case.Messages: must not be empty": {Start: start},
		"Case.Requests: must not be empty": {Serve: func(*onlyoncetest.Process) (http.Handler, onlyoncetest.Runner, error) { return nil, nil, nil }},
		"Case.Mask: must be a regular":     {Start: start, Messages: three(), Mask: "("},
		"Case.Migrate: no tables for you":  {Start: start, Messages: three(), Migrate: func(context.Context, *pgxpool.Pool) error { return errors.New("no tables for you") }},
		"Case.Migrate: ERROR: relation \"no\"": {Start: start, Messages: three(), Migrate: func(ctx context.Context, p *pgxpool.Pool) error {
			_, err := p.Exec(ctx, `select * from no`)
			return err
		}},
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
	if v, _ := verdictOf(t, c); v == nil || v.Kind != onlyoncetest.NotUsed {
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
