package preflight

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/migrations"
)

// oldestVersion is the oldest PostgreSQL that is tested (make matrix), as in server_version_num.
const oldestVersion = 140000

// stalePrepared is the age from which a prepared transaction counts as left over. A program that
// prepares one normally commits it within moments.
const stalePrepared = 5 * time.Minute

// LeastConns is the least size of a pool that is not warned of: pgxpool's own default, on any
// machine.
const LeastConns = 4

// SparedConns is how many connections of a pool handlers and operations of the HTTP layer leave to
// its own statements.
const SparedConns = 4

// Check checks the database of a pool, for a program that works there in some roles. The error
// joins every fault, each with what to do. The warnings are for people to read. They are complete
// unless the database could not be asked at all (S1).
func Check(ctx context.Context, pool *pgxpool.Pool, roles ...Role) (warnings []string, err error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	db := unnamedQuerier{conn}
	if err := migrations.CheckServer(ctx, db); err != nil {
		if primary.Refused(err) { // a standby runs nothing of a session that is SERIALIZABLE
			err = errors.New(isStandby)
		}
		return nil, err // none of the rest can be asked there
	}
	s, err := readServer(ctx, db)
	if err != nil {
		return nil, fmt.Errorf("reading the server's settings: %w", err)
	}
	faults := s.faults()
	warnings = append(s.warnings(), poolerWarnings(conn.Conn(), s.pid)...)
	if n := pool.Config().MaxConns; n < LeastConns {
		warnings = append(
			warnings,
			fmt.Sprintf(
				"the pool has at most %d connections (pool_max_conns), fewer than %d: each "+
					"partition, sink and request that is worked on takes one, and one more renews leases; "+
					"work waits for them",
				n,
				LeastConns,
			),
		)
	}

	if !s.standby { // where those of the WAL raise
		notes, err := missingFunctions(ctx, conn, functionsOf(roles), s.user)
		if err != nil {
			return warnings, errors.Join(append(faults, fmt.Errorf("calling the server's functions: %w", err))...)
		}
		for _, n := range notes {
			if n.Fault {
				faults = append(faults, errors.New(n.Text))
			} else {
				warnings = append(warnings, n.Text)
			}
		}
	}

	// Rights first: without them the schema's version cannot be read.
	for _, as := range roles {
		missing, err := missingRights(ctx, db, as, s.user)
		if err != nil {
			return warnings, errors.Join(append(faults, fmt.Errorf("reading the rights of %s: %w", s.user, err))...)
		}
		if len(missing) > 0 {
			faults = append(
				faults,
				fmt.Errorf("grant %s to %s (docs/roles.sql has the role): it lacks %s",
					as.name, s.user, Rights(missing)),
			)
		}
	}
	// If the check was denied, the missing rights name that.
	if err := migrations.Check(ctx, db); err != nil && !denied(err) {
		faults = append(faults, err)
	}
	prepared, err := preparedWarnings(ctx, db, stalePrepared)
	if err != nil {
		faults = append(faults, fmt.Errorf("reading prepared transactions: %w", err))
	}
	creators, err := creatorsWarnings(ctx, db, s.user)
	if err != nil {
		faults = append(faults, err)
	}
	return slices.Concat(warnings, prepared, creators), errors.Join(faults...)
}

// mostRights is how many missing rights are named.
const mostRights = 5

// Rights lists missing rights: how many, and the first of them.
func Rights(missing []string) string {
	if len(missing) <= mostRights {
		return show.Count(int64(len(missing)), "right") + ": " + strings.Join(missing, ", ")
	}
	return fmt.Sprintf("%d rights, the first: %s", len(missing), strings.Join(missing[:mostRights], ", "))
}

// denied reports whether err is insufficient_privilege.
func denied(err error) bool {
	return guard.SQLState(err) == "42501"
}

// unnamedQuerier runs queries without naming a prepared statement, whatever the pool's mode. If
// that mode does not work with a pooler, the check must report it, and must not fail because of it.
type unnamedQuerier struct{ conn Conn }

// Conn is a connection of a pool, or a transaction.
type Conn interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func (u unnamedQuerier) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return u.conn.QueryRow(ctx, sql, append([]any{pgx.QueryExecModeExec}, args...)...)
}

func (u unnamedQuerier) strings(ctx context.Context, sql string, args ...any) ([]string, error) {
	rows, err := u.conn.Query(ctx, sql, append([]any{pgx.QueryExecModeExec}, args...)...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}
