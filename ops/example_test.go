package ops_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// exampleDatabase makes a database in which three messages are parked.
func exampleDatabase() (ctx context.Context, pool *pgxpool.Pool, end func()) {
	s := &stage{}
	ctx, pool = context.Background(), pgtest.DB(s)
	if _, err := pool.Exec(ctx, parkSQL, 3); err != nil {
		panic(err)
	}
	return ctx, pool, func() {
		for _, f := range slices.Backward(s.ends) {
			f()
		}
	}
}

// stage is what package pgtest needs of a test, for examples, which have none.
type stage struct {
	testing.TB
	ends []func()
}

func (s *stage) Cleanup(f func())          { s.ends = append(s.ends, f) }
func (*stage) Helper()                     {}
func (*stage) Name() string                { return "example" }
func (*stage) Failed() bool                { return false }
func (*stage) Logf(string, ...any)         {}
func (*stage) Fatalf(f string, a ...any)   { panic(fmt.Sprintf(f, a...)) }
func (s *stage) Errorf(f string, a ...any) { s.Fatalf(f, a...) }
func (*stage) Fatal(a ...any)              { panic(fmt.Sprint(a...)) }
