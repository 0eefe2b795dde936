package client

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// SQLKeyStore is a [KeyStore] in a table of a database, through database/sql. It works with
// PostgreSQL, and with other databases that support "on conflict ... returning" and $1, for example
// SQLite. Times in the table are this program's, in UTC. Create the table with the statement of
// [SQLKeyStore.Schema]. It is safe for concurrent use, also by several processes.
type SQLKeyStore struct {
	db                           *sql.DB
	schema, keep, forget, expire string
}

// tableName is what NewSQLKeyStore takes: it is not quoted in statements.
var tableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?$`)

// NewSQLKeyStore makes a KeyStore in a table, for example "idempotency_keys" or
// "shop.idempotency_keys": letters, digits and underscores. It does not connect. The error wraps
// [ErrConfig].
func NewSQLKeyStore(db *sql.DB, table string) (*SQLKeyStore, error) {
	var faults []error
	if db == nil {
		faults = append(faults, fmt.Errorf("%w: db: must not be nil", ErrConfig))
	}
	if !tableName.MatchString(table) {
		faults = append(
			faults,
			fmt.Errorf("%w: table: %q must be a name of letters, digits and underscores, with at most one dot",
				ErrConfig, table),
		)
	}
	in := func(statement string) string { return strings.ReplaceAll(statement, "TABLE", table) }
	// Keep updates a row that exists to itself, because "returning" returns only rows that were
	// written. All but expire, which reads the whole table, use the primary key. No statement has
	// the database say what time it is: that depends on the session's time zone.
	return &SQLKeyStore{
		db:     db,
		schema: in(`create table TABLE (intent text primary key, key text not null, made_at timestamp not null)`),
		keep: in(`
insert into TABLE as t (intent, key, made_at)
  values ($1, $2, $3) on conflict (intent) do update set intent = t.intent returning key`),
		forget: in(`delete from TABLE where intent = $1`),
		expire: in(`delete from TABLE where made_at < $1`),
	}, errors.Join(faults...)
}

// Schema returns the statement that makes the table.
func (s *SQLKeyStore) Schema() string { return s.schema }

// Keep stores a key for an intent without one, and returns the intent's key. It commits before it
// returns. Two concurrent calls return the same key.
func (s *SQLKeyStore) Keep(ctx context.Context, intent, key string) (kept string, err error) {
	err = s.db.QueryRowContext(ctx, s.keep, intent, key, time.Now().UTC()).Scan(&kept)
	return kept, err
}

// Forget removes an intent's key, if there is one.
func (s *SQLKeyStore) Forget(ctx context.Context, intent string) error {
	_, err := s.db.ExecContext(ctx, s.forget, intent)
	return err
}

// Expire removes keys that were stored before a time, by the clocks of the programs that stored
// them, and returns their number. The server forgets
// its side after its TTL. If a key is removed before, the next attempt is a new operation, so
// choose a time so long ago that a retry can no longer come.
func (s *SQLKeyStore) Expire(ctx context.Context, before time.Time) (int64, error) {
	result, err := s.db.ExecContext(ctx, s.expire, before.UTC())
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}
