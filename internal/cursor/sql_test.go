package cursor_test

import (
	"testing"

	"github.com/onlyonce/onlyonce/internal/cursor"
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
		cursor.PauseSQL, cursor.ResumeSQL, cursor.CreateSQL, cursor.LockOwnerSQL,
		cursor.KeepDoneSQL, cursor.ForgetAttemptsSQL, cursor.BringDoneSQL, cursor.ReadDoneSQL,
		cursor.FenceOwnerSQL, cursor.AdoptSQL, cursor.StampSQL, cursor.RedoSQL,
		cursor.LockReplaysSQL, cursor.ReplayNoSQL, cursor.ReplaySQL, cursor.RetireSQL,
		cursor.BringScopeSQL, cursor.LockScopeOwnersSQL, cursor.LockScopeRowSQL, cursor.ClassSQL,
	} {
		if _, err := conn.Conn().Prepare(t.Context(), "", sql); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
}
