package preflight

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/migrations"
)

// serverSQL returns one row. Every role may read these settings. It reads default_transaction_* and
// not transaction_*, because a pooler may have put this statement into any transaction.
const serverSQL = `
select current_user::text,
       pg_backend_pid(),
       pg_is_in_recovery(),
       current_setting('server_version_num')::int,
       current_setting('server_version'),
       current_setting('default_transaction_read_only') = 'on',
       current_setting('default_transaction_isolation'),
       current_setting('synchronous_commit'),
       current_setting('fsync') = 'on',
       current_setting('full_page_writes') = 'on',
       current_setting('server_encoding')`

// serverSettings is a row of serverSQL.
type serverSettings struct {
	user                  string
	pid                   uint32
	standby               bool
	versionNumber         int
	version               string
	readOnly              bool
	isolation             string
	synchronous           string
	fsync, fullPageWrites bool
	encoding              string
}

func readServer(ctx context.Context, db migrations.DB) (s serverSettings, err error) {
	var pid int32
	err = db.QueryRow(ctx, serverSQL).Scan(
		&s.user, &pid, &s.standby, &s.versionNumber, &s.version, &s.readOnly, &s.isolation,
		&s.synchronous, &s.fsync, &s.fullPageWrites, &s.encoding,
	)
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
	db := unnamedQuerier{conn}
	s, err := readServer(ctx, db)
	if err != nil {
		return nil, fmt.Errorf("reading the server's settings: %w", err)
	}
	notes := s.findings()
	if !s.standby { // where those of the WAL raise
		missing, err := missingFunctions(ctx, conn, Relay.functions, s.user)
		if err != nil {
			return nil, fmt.Errorf("calling the server's functions: %w", err)
		}
		notes = append(notes, missing...)
	}
	prepared, err := preparedWarnings(ctx, db, stalePrepared)
	if err != nil {
		return nil, fmt.Errorf("reading prepared transactions: %w", err)
	}
	for _, text := range prepared {
		notes = append(notes, Note{Name: "prepared_transactions", Text: text})
	}
	creators, err := creatorsWarnings(ctx, db, s.user)
	for _, text := range creators {
		notes = append(notes, Note{Name: "search_path", Text: text})
	}
	if err != nil {
		return nil, err
	}
	return notes, nil
}

// faults returns the findings that make work impossible.
func (s serverSettings) faults() (faults []error) {
	for _, n := range s.findings() {
		if n.Fault {
			faults = append(faults, errors.New(n.Text))
		}
	}
	return faults
}

// warnings returns the settings that weaken the promise, or cost throughput. None is an error: each
// may be deliberate, and effects are applied once regardless. A position is lost together with its
// effects, which are made again if Kafka still has the messages.
func (s serverSettings) warnings() (warnings []string) {
	for _, n := range s.findings() {
		if !n.Fault {
			warnings = append(warnings, n.Text)
		}
	}
	return warnings
}

const isStandby = "the server is a standby and takes no writes: connect to the primary " +
	"(target_session_attrs=read-write)"

func (s serverSettings) findings() (notes []Note) {
	fault := func(name, format string, args ...any) {
		notes = append(notes, Note{name, true, fmt.Sprintf(format, args...)})
	}
	warn := func(name, format string, args ...any) {
		notes = append(notes, Note{name, false, fmt.Sprintf(format, args...)})
	}
	if s.standby {
		fault("standby", isStandby)
	} else if s.readOnly {
		fault("default_transaction_read_only",
			"transactions of %s are read-only: set default_transaction_read_only = off for this role, "+
				"database or connection",
			s.user)
	}
	if s.encoding != "UTF8" {
		fault("encoding",
			"the database's encoding is %s, which cannot store every text: create the database with encoding UTF8",
			s.encoding)
	}
	if s.versionNumber < oldestVersion {
		fault("server_version",
			"PostgreSQL %s is older than 14, the oldest that onlyonce is tested with: upgrade the server",
			s.version)
	}
	if s.synchronous == "off" {
		warn("synchronous_commit",
			"synchronous_commit is off: a crash of the server may lose the last commits. Messages of Kafka "+
				"are handled again as long as it holds them, but HTTP requests that were answered are lost "+
				"with their commit, and a program that has read the effects may see them disappear for a time. "+
				"Relays and the receivers of webhooks and queues flush their own commits nevertheless")
	}
	if !s.fsync {
		warn("fsync",
			"fsync is off: a crash of the machine may corrupt the database, and nothing is promised after "+
				"that. Switch it off only for servers that are thrown away")
	}
	if s.fsync && !s.fullPageWrites {
		warn("full_page_writes",
			"full_page_writes is off: a crash of the machine may corrupt the database, unless its storage "+
				"writes whole pages")
	}
	if s.isolation != "read committed" {
		warn("default_transaction_isolation",
			"default_transaction_isolation is %s: effects are still applied once, but transactions fail "+
				"with 40001 and run again, handlers included; under read committed they would wait",
			s.isolation)
	}
	return notes
}

// poolerWarnings warns of named prepared statements if there is a pooler between us and the server.
// PgBouncer gives its clients a process id that it made up, for their cancel requests.
func poolerWarnings(conn *pgx.Conn, backend uint32) []string {
	switch conn.Config().DefaultQueryExecMode {
	case pgx.QueryExecModeCacheStatement:
		if conn.PgConn().PID() != backend {
			return []string{
				"there is a pooler between this program and the server, and the pool names prepared " +
					"statements: in transaction mode PgBouncer supports them from 1.21 on, with " +
					"max_prepared_statements above 0. Set default_query_exec_mode=exec in the address if " +
					"statements fail with 26000 or 42P05",
			}
		}
	}
	return nil
}

// creatorsSQL lists the other logins that may create functions in a schema of the search_path, and
// the schemas. Superusers and those who have the rights of the database's or our schema's owner are
// left out. If the transaction has pinned its search_path, as those of package ops do, the one that
// its session began with counts. It calls only functions whose argument types are the given ones,
// which such a function could not replace. One row, or none (S2).
const creatorsSQL = `
select string_agg(distinct quote_ident(c.login::text), ', '), string_agg(distinct quote_ident(c.schema::text), ', ')
  from (select r.rolname as login, n.nspname as schema
          from pg_roles r, pg_namespace n, pg_database d
         where d.datname = current_database() and r.rolcanlogin and not r.rolsuper and r.rolname <> current_user
           and case
                 when current_setting('search_path') <> 'pg_catalog' then n.nspname = any (current_schemas(false))
                 else strpos(',' || replace(replace(replace((select s.reset_val
                                                               from pg_settings s
                                                              where s.name = 'search_path'),
                                                            ' ', ''),
                                                    '"', ''),
                                            '$user', current_user::text) || ',',
                             ',' || n.nspname::text || ',') > 0
               end
           and has_schema_privilege(r.oid, n.oid, 'CREATE') and not pg_has_role(r.oid, d.datdba, 'USAGE')
           and not exists (select from pg_namespace o
                            where o.nspname = 'onlyonce' and pg_has_role(r.oid, o.nspowner, 'USAGE'))) c
having count(*) > 0`

// creatorsWarnings warns if other logins could have their functions run with this one's rights.
func creatorsWarnings(ctx context.Context, db unnamedQuerier, who string) ([]string, error) {
	var logins, schemas string
	switch err := db.QueryRow(ctx, creatorsSQL).Scan(&logins, &schemas); {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading who may create functions: %w", err)
	}
	return []string{fmt.Sprintf(
		"%s may create functions in %s, which is in the search_path of %s: "+
			"PostgreSQL may call such a function in place of its own, with the rights of %[3]s. Revoke that "+
			"right, as docs/roles.sql does for public, or leave the schema out of the search_path (alter "+
			"role %[3]s set search_path = ...)",
		logins,
		schemas,
		who,
	)}, nil
}

// oldPreparedSQL returns a line for each prepared transaction of this database that is older than
// $1 seconds. Every role may read it.
const oldPreparedSQL = `
select format('%L of %s, since %s', gid, owner, prepared::timestamptz(0)) from pg_prepared_xacts
 where database = current_database() and prepared < clock_timestamp() - make_interval(secs => $1)
 order by prepared`

func preparedWarnings(ctx context.Context, db unnamedQuerier, age time.Duration) ([]string, error) {
	left, err := db.strings(ctx, oldPreparedSQL, age.Seconds())
	if err != nil || len(left) == 0 {
		return nil, err
	}
	return []string{fmt.Sprintf("prepared transactions were left over: %s. They keep their locks and hold "+
		"back vacuum: end each with COMMIT PREPARED or ROLLBACK PREPARED",
		strings.Join(left, "; "))}, nil
}
