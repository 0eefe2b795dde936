//go:build unix

package devenv_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/test/devenv"
)

// It is in transaction mode: two clients share the one server connection, and what one
// leaves in the session the other finds.
func TestPgBouncer(t *testing.T) {
	p := startPostgres(t, devenv.Options{})
	b, err := devenv.StartPgBouncer(t.Context(), p.URL, 1, devenv.Options{})
	if errors.Is(err, devenv.ErrNoPgBouncer) {
		unreachable(t, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	var pids []string
	for range 2 {
		conn, err := pgx.Connect(t.Context(), b.Exec())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close(t.Context()) }()
		var pid string
		if err := conn.QueryRow(t.Context(), "select pg_backend_pid()::text").Scan(&pid); err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	if pids[0] != pids[1] {
		t.Errorf("two clients have the server connections %v, want one", pids)
	}
	if err := b.Stop(); err != nil {
		t.Error(err)
	}
	if _, err := query(b.Exec(), "select 1::text"); err == nil {
		t.Error("it answers after Stop")
	}
	mustQuery(t, p.URL, "select 1::text")
}
