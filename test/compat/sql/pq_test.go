package sql

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/sqltx"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/test/sqlsuite"
)

var (
	libpq = []sqlsuite.Driver{{Name: "pq", Driver: "postgres"}, {Name: "pq binary", Driver: "postgres", Options: "binary_parameters=yes"}}
	all   = append(
		[]sqlsuite.Driver{
			{Name: "pgx", Driver: "pgx"},
			{Name: "pgx simple", Driver: "pgx", Options: "default_query_exec_mode=simple_protocol"},
		},
		libpq...,
	)
)

func TestLibpq(t *testing.T) {
	t.Parallel()
	sqlsuite.Run(t, libpq...)
}

// An error of lib/pq keeps its type, for code that looks for it.
func TestErrorsStayTheDrivers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Empty(t) // no schema onlyonce
	db := sqlsuite.Open(t, libpq[0], pool)
	err := sqlsuite.InTx(t, db, func(tx *sql.Tx) error {
		_, err := sqltx.Claim(t.Context(), tx, sqlsuite.Key("a", "1"))
		return err
	})
	var theirs *pq.Error
	var ours *pgconn.PgError
	good := errors.As(err, &theirs) &&
		errors.As(err, &ours) &&
		string(theirs.Code) == "3F000" &&
		ours.Code == "3F000"
	if !good {
		t.Errorf("%#v", err)
	}
}

// T12: Do closes connections that lead to a standby. It is recognized at BEGIN.
func TestT12DoOnAStandby(t *testing.T) {
	t.Parallel()
	s := pgtest.NewSwitchover(t)
	pool := s.Pool()
	db, err := sql.Open("postgres", pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	s.Begin()
	if err := db.PingContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.End(pool)
	got, err := (sqltx.DoConfig{MaxAttempts: 2}).Do(
		t.Context(),
		db,
		sqlsuite.Key("a", "1"),
		func(context.Context, *sql.Tx) error { return nil },
	)
	if err != nil || got != dedupe.Fresh {
		t.Errorf("%v, %v", got, err)
	}
}
