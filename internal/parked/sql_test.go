package parked_test

import (
	"testing"

	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// Every statement is one that the real server understands.
func TestStatementsPrepare(t *testing.T) {
	t.Parallel()
	conn, err := pgtest.DB(t).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for _, sql := range []string{
		parked.InsertMessageSQL, parked.PromoteSQL, parked.LockSQL, parked.RedriveSQL,
		parked.AppendSQL, parked.DiscardSQL, parked.ClaimGivenUpSQL, parked.RedriveCallsSQL,
		parked.ResolveCallsSQL,
	} {
		if _, err := conn.Conn().Prepare(t.Context(), "", sql); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
}
