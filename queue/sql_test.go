package queue

import (
	"testing"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// The real server can parse every statement.
func TestStatementsPrepare(t *testing.T) {
	t.Parallel()
	conn, err := pgtest.DB(t).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for _, sql := range []string{holdSQL, tooOldSQL} {
		if _, err := conn.Conn().Prepare(t.Context(), "", sql); err != nil {
			t.Error(err)
		}
	}
}
