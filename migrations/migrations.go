// Package migrations holds the database schema `onlyonce` as plain SQL, and applies it.
//
// A directory is a version. Its files are the chapters of that version, one for each part of the
// schema, in the order of their numbers: 0001/1_ground.sql, 0001/2_inbox.sql and so on. Apply runs
// a version in one transaction. The files are plain SQL: psql -1 -v ON_ERROR_STOP=1 with the output
// of [Print] does the same as [Apply], and a team with its own migration tool can copy it there.
// The last chapter records the version, so [Version] is right either way.
//
// A version of the code works with its own schema version and with the next one ([Check]), and
// migrations expand before they contract. So in a rolling deploy, migrate first and replace pods
// after.
package migrations

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/internal/names"
)

// FS holds the migrations: a directory for each version, named NNNN, with its chapters in order,
// named N_what.sql.
//
//go:embed [0-9]*/*.sql
var FS embed.FS

// Latest is the schema version of this version of the code.
const Latest = 1

// ErrSchema is wrapped by every error of [Check] about a schema that does not fit the code.
var ErrSchema = errors.New("migrations: schema does not fit this version of onlyonce")

// lockSQL serialises Apply across processes: a two-int advisory key ("once", 1) that the
// transaction holds. It also pins the search_path of the transaction, so that no function in
// another schema runs in place of PostgreSQL's own with the rights of the role that migrates.
const lockSQL = `
select pg_catalog.set_config('search_path', 'pg_catalog', true),
       pg_catalog.pg_advisory_xact_lock(` + names.MigrationLocks + `, 1)`

// versionSQL returns one row: the highest version applied, or null. It fails with 42P01 if the
// schema is missing.
const versionSQL = `select max(version) from onlyonce.schema_version`

// DB is the database of [Version] and [Check]: a *pgx.Conn, pgx.Tx or *pgxpool.Pool.
type DB interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

type migration struct {
	version  int
	chapters []chapter
}

type chapter struct {
	name string // the file, for example 0001/1_ground.sql
	sql  string
}

// loadMigrations returns the embedded migrations in order of version.
func loadMigrations() ([]migration, error) {
	entries, err := FS.ReadDir(".")
	if err != nil {
		return nil, err
	}
	var all []migration
	for _, e := range entries { // sorted by name, and so are the chapters
		version, err := strconv.Atoi(e.Name())
		if err != nil {
			return nil, fmt.Errorf("migrations: directory %s is not named by its version: %w", e.Name(), err)
		}
		files, err := FS.ReadDir(e.Name())
		if err != nil {
			return nil, err
		}
		m := migration{version: version}
		for _, f := range files {
			name := path.Join(e.Name(), f.Name())
			sql, err := FS.ReadFile(name)
			if err != nil {
				return nil, err
			}
			m.chapters = append(m.chapters, chapter{name, string(sql)})
		}
		all = append(all, m)
	}
	return all, nil
}

// Apply brings the schema to [Latest] in one transaction and returns the versions that it applied,
// none if the schema was at Latest.
//
// Any number of processes may call it at once: they take turns on an advisory lock of the
// transaction, which works through PgBouncer too. The role needs the right to create schemas. Apply
// leaves a newer schema unchanged and returns no error; see [Check].
func Apply(ctx context.Context, conn *pgx.Conn) (applied []int, err error) {
	if err := CheckServer(ctx, conn); err != nil {
		return nil, err
	}
	all, err := loadMigrations()
	if err != nil {
		return nil, err
	}
	for attempt := 1; ; attempt++ {
		applied, err = applyPending(ctx, conn, all)
		// A transaction that works meanwhile may lock the same tables in another order. The server
		// then ends one of the two.
		var pgErr *pgconn.PgError
		if attempt == applyAttempts || !errors.As(err, &pgErr) || pgErr.Code != "40P01" {
			return applied, err
		}
	}
}

// applyAttempts is how often Apply tries again after a deadlock with running work.
const applyAttempts = 5

func applyPending(ctx context.Context, conn *pgx.Conn, all []migration) (applied []int, err error) {
	// At a higher level the snapshot would be that of the lock's own statement: who has waited for
	// the lock would not see what the one before has made.
	readCommitted := pgx.TxOptions{IsoLevel: pgx.ReadCommitted}
	err = pgx.BeginTxFunc(ctx, conn, readCommitted, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockSQL); err != nil {
			return err
		}
		current, err := versionInTx(ctx, tx)
		if err != nil {
			return err
		}
		for _, m := range all {
			if m.version <= current {
				continue
			}
			for _, c := range m.chapters {
				// The simple protocol, because a file holds many statements; it has no parameters.
				if _, err := tx.Conn().PgConn().Exec(ctx, c.sql).ReadAll(); err != nil {
					return fmt.Errorf("migrations: %s: %w", c.name, err)
				}
			}
			applied = append(applied, m.version)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return applied, nil
}

// Version returns the version of the schema in the database, or 0 if there is none.
func Version(ctx context.Context, db DB) (int, error) {
	var v *int
	err := db.QueryRow(ctx, versionSQL).Scan(&v)
	if schemaMissing(err) || (err == nil && v == nil) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("migrations: reading the schema version: %w", err)
	}
	return *v, nil
}

// Check returns an error that wraps [ErrSchema], with the remedy, unless the schema is at [Latest]
// or the version after it (S1).
func Check(ctx context.Context, db DB) error {
	v, err := Version(ctx, db)
	switch {
	case err != nil:
		return err
	case v == 0:
		return fmt.Errorf("%w: there is no schema onlyonce in this database: run `onlyonce migrate`", ErrSchema)
	case v < Latest:
		return fmt.Errorf("%w: schema version %d is older than %d: run `onlyonce migrate`", ErrSchema, v, Latest)
	case v > Latest+1:
		return fmt.Errorf("%w: schema version %d is too new for this code, which knows versions %d and %d: "+
			"deploy a newer version of onlyonce", ErrSchema, v, Latest, Latest+1)
	}
	return nil
}

// Print writes every version after `after`, chapter by chapter, as SQL that psql can run.
func Print(w io.Writer, after int) error {
	all, err := loadMigrations()
	if err != nil {
		return err
	}
	for _, m := range all {
		if m.version <= after {
			continue
		}
		for _, c := range m.chapters {
			if _, err := fmt.Fprintf(w, "-- %s\n%s\n", c.name, c.sql); err != nil {
				return err
			}
		}
	}
	return nil
}

// versionInTx is Version inside a transaction, which a failed statement would end. So it reads the
// catalog first.
func versionInTx(ctx context.Context, tx pgx.Tx) (int, error) {
	var there bool
	if err := tx.QueryRow(ctx, `select to_regclass('onlyonce.schema_version') is not null`).Scan(&there); err != nil {
		return 0, err
	}
	if !there {
		return 0, nil
	}
	return Version(ctx, tx)
}

// schemaMissing reports whether err says that the table or its schema does not exist
// (undefined_table, invalid_schema_name).
func schemaMissing(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && (pgErr.Code == "42P01" || pgErr.Code == "3F000")
}
