package sqltx_test

import (
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/test/sqlsuite"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// T1, K1, K2, O1 through database/sql; test/compat has the same for lib/pq.
func TestSQL(t *testing.T) {
	t.Parallel()
	sqlsuite.Run(t,
		sqlsuite.Driver{Name: "pgx", Driver: "pgx"},
		sqlsuite.Driver{Name: "pgx exec", Driver: "pgx", Options: "default_query_exec_mode=exec"},
		sqlsuite.Driver{Name: "pgx simple", Driver: "pgx", Options: "default_query_exec_mode=simple_protocol"})
}
