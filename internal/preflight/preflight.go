package preflight

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/migrations"
)

// oldest is the oldest PostgreSQL that is tested (make matrix), as in server_version_num.
const oldest = 140000

// stalePrepared is the age from which a prepared transaction counts as left over. A program that
// prepares one normally commits it within moments.
const stalePrepared = 5 * time.Minute

// Check checks the database of a pool, for a program that works there in a role. The error joins
// every fault, each with what to do. The warnings are for people to read. They are complete unless
// the database could not be asked at all.
func Check(ctx context.Context, pool *pgxpool.Pool, as Role) (warnings []string, err error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	db := unnamed{conn}
	s, err := readServer(ctx, db)
	if err != nil {
		return nil, fmt.Errorf("reading the server's settings: %w", err)
	}
	faults := s.faults()
	warnings = append(s.warnings(), pooler(conn.Conn(), s.pid)...)

	// Rights first: without them the schema's version cannot be read.
	missing, err := missingRights(ctx, db, as, s.user)
	if err != nil {
		return warnings, errors.Join(append(faults, fmt.Errorf("reading the rights of %s: %w", s.user, err))...)
	}
	if len(missing) > 0 {
		faults = append(faults, fmt.Errorf("role %s lacks rights: %s; grant them (docs/roles.sql has all that %s needs)",
			s.user, strings.Join(missing, ", "), as.name))
	}
	// If the check was denied, the missing rights name that.
	if err := migrations.Check(ctx, db); err != nil && !denied(err) {
		faults = append(faults, err)
	}
	prepared, err := leftPrepared(ctx, db, stalePrepared)
	if err != nil {
		faults = append(faults, fmt.Errorf("reading prepared transactions: %w", err))
	}
	return append(warnings, prepared...), errors.Join(faults...)
}

// denied reports whether err is insufficient_privilege.
func denied(err error) bool {
	return guard.SQLState(err) == "42501"
}

// unnamed runs queries without naming a prepared statement, whatever the pool's mode. If that mode
// does not work with a pooler, the check must report it, and must not fail because of it.
type unnamed struct{ conn Conn }

// Conn is a connection of a pool, or a transaction.
type Conn interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func (u unnamed) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return u.conn.QueryRow(ctx, sql, append([]any{pgx.QueryExecModeExec}, args...)...)
}

func (u unnamed) strings(ctx context.Context, sql string, args ...any) ([]string, error) {
	rows, err := u.conn.Query(ctx, sql, append([]any{pgx.QueryExecModeExec}, args...)...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// serverSQL returns one row. Every role may read these settings. It reads default_transaction_* and
// not transaction_*, because a pooler may have put this statement into any transaction.
const serverSQL = `
select current_user::text, pg_backend_pid(), pg_is_in_recovery(), current_setting('server_version_num')::int,
       current_setting('server_version'), current_setting('default_transaction_read_only') = 'on', current_setting('default_transaction_isolation'),
       current_setting('synchronous_commit'), current_setting('fsync') = 'on', current_setting('full_page_writes') = 'on',
       current_setting('server_encoding')`

// server is a row of serverSQL.
type server struct {
	user                  string
	pid                   uint32
	standby               bool
	number                int
	version               string
	readOnly              bool
	isolation             string
	synchronous           string
	fsync, fullPageWrites bool
	encoding              string
}

func readServer(ctx context.Context, db migrations.DB) (s server, err error) {
	var pid int32
	err = db.QueryRow(ctx, serverSQL).Scan(&s.user, &pid, &s.standby, &s.number, &s.version, &s.readOnly, &s.isolation, &s.synchronous, &s.fsync, &s.fullPageWrites, &s.encoding)
	s.pid = uint32(pid)
	return s, err
}

// Note is one finding about a server.
type Note struct {
	Name  string // name of the setting, or standby, encoding, server_version, prepared_transactions
	Fault bool   // work is impossible
	Text  string // with what to do
}

// Server returns the findings about the server of a connection, faults first: those of Check,
// without rights and schema.
func Server(ctx context.Context, conn Conn) ([]Note, error) {
	db := unnamed{conn}
	s, err := readServer(ctx, db)
	if err != nil {
		return nil, fmt.Errorf("reading the server's settings: %w", err)
	}
	notes := s.notes()
	prepared, err := leftPrepared(ctx, db, stalePrepared)
	if err != nil {
		return nil, fmt.Errorf("reading prepared transactions: %w", err)
	}
	for _, text := range prepared {
		notes = append(notes, Note{Name: "prepared_transactions", Text: text})
	}
	return notes, nil
}

// faults returns the findings that make work impossible.
func (s server) faults() (faults []error) {
	for _, n := range s.notes() {
		if n.Fault {
			faults = append(faults, errors.New(n.Text))
		}
	}
	return faults
}

// warnings returns the settings that weaken the promise, or cost. None is an error, because each
// can be intended, and effects stay single with each of them: the position is lost together with
// the effects, and what was lost is done again.
func (s server) warnings() (warnings []string) {
	for _, n := range s.notes() {
		if !n.Fault {
			warnings = append(warnings, n.Text)
		}
	}
	return warnings
}

func (s server) notes() (notes []Note) {
	fault := func(name, format string, args ...any) {
		notes = append(notes, Note{name, true, fmt.Sprintf(format, args...)})
	}
	warn := func(name, format string, args ...any) {
		notes = append(notes, Note{name, false, fmt.Sprintf(format, args...)})
	}
	if s.standby {
		fault("standby", "the server is a standby and takes no writes: connect to the primary (target_session_attrs=read-write)")
	} else if s.readOnly {
		fault("default_transaction_read_only", "transactions of %s are read-only: set default_transaction_read_only = off for this role, database or connection", s.user)
	}
	if s.encoding != "UTF8" {
		fault("encoding", "the database's encoding is %s, in which not every text can be stored: create it with encoding UTF8", s.encoding)
	}
	if s.number < oldest {
		fault("server_version", "PostgreSQL %s is older than 14, the oldest that onlyonce is tested with: upgrade the server", s.version)
	}
	if s.synchronous == "off" {
		warn("synchronous_commit", "synchronous_commit is off: a crash of the server takes the last commits back. They are done again from Kafka as long as it still holds the messages; whoever saw the effects saw what was not to last. Relays flush their own commits all the same")
	}
	if !s.fsync {
		warn("fsync", "fsync is off: a crash of the machine may corrupt the database, and nothing is promised after it. Only for servers that are thrown away")
	}
	if s.fsync && !s.fullPageWrites {
		warn("full_page_writes", "full_page_writes is off: a crash of the machine may corrupt the database, unless its storage writes whole pages")
	}
	if s.isolation != "read committed" {
		warn("default_transaction_isolation", "default_transaction_isolation is %s: effects stay single, but transactions fail with 40001 and run again, handlers included, where under read committed they would wait", s.isolation)
	}
	return notes
}

// pooler warns of named prepared statements if there is a pooler between us and the server.
// PgBouncer gives its clients a process id that it made up, for their cancel requests.
func pooler(conn *pgx.Conn, backend uint32) []string {
	switch conn.Config().DefaultQueryExecMode {
	case pgx.QueryExecModeCacheStatement:
		if conn.PgConn().PID() != backend {
			return []string{"a pooler stands before the server, and this pool names prepared statements: in transaction mode PgBouncer knows none before 1.21, and later only with max_prepared_statements above 0. Set default_query_exec_mode=exec in the address if statements fail with 26000 or 42P05"}
		}
	}
	return nil
}

// preparedSQL returns a line for each prepared transaction of this database that is older than $1
// seconds. Every role may read it.
const preparedSQL = `
select format('%L of %s, since %s', gid, owner, prepared::timestamptz(0)) from pg_prepared_xacts
 where database = current_database() and prepared < clock_timestamp() - make_interval(secs => $1)
 order by prepared`

func leftPrepared(ctx context.Context, db unnamed, age time.Duration) ([]string, error) {
	left, err := db.strings(ctx, preparedSQL, age.Seconds())
	if err != nil || len(left) == 0 {
		return nil, err
	}
	return []string{fmt.Sprintf("prepared transactions were left over: %s. They keep their locks and hold back vacuum for ever: COMMIT PREPARED or ROLLBACK PREPARED each",
		strings.Join(left, "; "))}, nil
}
