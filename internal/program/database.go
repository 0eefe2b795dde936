// Package program is what the programs of this project share: how they connect to the database of a
// command line and explain its errors, and how they answer at an address.
package program

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/migrations"
)

// EnvPostgres names the database if -postgres is not given.
const EnvPostgres = "ONLYONCE_POSTGRES_URL"

// Bounds of what a program asks of its database.
const (
	ConnectTimeout = 8 * time.Second  // of connecting, for all hosts of the address together
	ReadTimeout    = 60 * time.Second // of a command that only reads
	closeTimeout   = 2 * time.Second
)

// SQLSTATEs of PostgreSQL (Appendix A) that get advice of their own.
const (
	codeReadOnly      = "25006"
	codeNoPrivilege   = "42501"
	codeLockTimeout   = "55P03"
	codeCanceled      = "57014"
	codeNoDatabase    = "3D000"
	codeWrongPassword = "28P01"
	codeNotAuthorized = "28000"
)

// Connector connects to the database of a command line.
type Connector struct {
	// Env returns the value of an environment variable.
	Env func(string) string
	// Notice is called with what the server says beside its answers. Nil: it is dropped.
	Notice pgconn.NoticeHandler
	// Timeout bounds connecting.
	Timeout time.Duration
}

// Database is a connection and its name for people, without its password.
type Database struct {
	*pgx.Conn
	Name string
}

// With connects, runs f and closes. The context of f is ctx. The errors of f are its own: see
// [Database.Explain].
func (c Connector) With(ctx context.Context, address string, f func(db *Database) error) error {
	db, err := c.Connect(ctx, address)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		_ = db.Close(ctx) // everything that matters has been committed or answered
	}()
	return f(db)
}

// Check is migrations.Check with a bound on its time.
func (db *Database) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, ReadTimeout)
	defer cancel()
	return migrations.Check(ctx, db)
}

// Config reads the database's address, and returns where it was given. The server shows the
// connections under a name. Their certificates and passwords are read anew for each.
func (c Connector) Config(ctx context.Context, address, name string) (cfg *pgxpool.Config, from string, err error) {
	if address, from, err = c.address(address); err != nil {
		return nil, "", err
	}
	// An address may have parameters of a pool, which no server knows: see plan connections.
	if cfg, err = pgxpool.ParseConfig(address); err != nil {
		return nil, "", badAddress(from, address, err)
	}
	if cfg.ConnConfig.RuntimeParams["application_name"] == "" {
		cfg.ConnConfig.RuntimeParams["application_name"] = name
	}
	cfg.ConnConfig.OnNotice = c.Notice
	if cfg.BeforeConnect, err = renewer(address, cfg.ConnConfig); err == nil {
		err = cfg.BeforeConnect(ctx, cfg.ConnConfig)
	}
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", from, err)
	}
	return cfg, from, nil
}

// Pool makes the connections of a command that runs until it is stopped. It does not connect.
func (c Connector) Pool(ctx context.Context, address, name string) (*pgxpool.Pool, error) {
	cfg, _, err := c.Config(ctx, address, name)
	if err != nil {
		return nil, err
	}
	return pgxpool.NewWithConfig(ctx, cfg)
}

// Connect connects. The server shows the connection as onlyonce.
func (c Connector) Connect(ctx context.Context, address string) (*Database, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	pooled, from, err := c.Config(ctx, address, "onlyonce")
	if err != nil {
		return nil, err
	}
	cfg := pooled.ConnConfig
	// Statements are not prepared, because a pooler in front of the server may not support that.
	// Values are not put into the SQL either.
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec
	name := serverName(cfg)
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, connectError(ctx, name, from, c.Timeout, err)
	}
	return &Database{conn, name}, nil
}

// address returns the database's address and where it was given: in -postgres, or else in the
// environment.
func (c Connector) address(flag string) (address, from string, err error) {
	from = "-postgres"
	address = flag
	if address == "" {
		from, address = EnvPostgres, c.Env(EnvPostgres)
	}
	if address == "" {
		return "", "", fmt.Errorf("-postgres: no database given: add -postgres "+
			"postgres://user@host:5432/name, or set %s", EnvPostgres)
	}
	return address, from, nil
}

func badAddress(from, address string, err error) error {
	return fmt.Errorf("%s: not an address of a database, which has the form postgres://user@host:5432/name%s",
		from, parseReason(address, err))
}

// parseReason returns what is wrong with an address, unless that could show a password.
func parseReason(address string, err error) string {
	u, urlErr := url.Parse(address)
	if urlErr != nil || u.Host == "" {
		return ""
	}
	cause := err
	for next := errors.Unwrap(cause); next != nil; next = errors.Unwrap(cause) {
		cause = next
	}
	text := show.Printable(show.OneLine(cause.Error()))
	secrets := append([]string{address}, u.Query()["password"]...)
	secrets = append(secrets, u.Query()["sslpassword"]...)
	if p, ok := u.User.Password(); ok {
		secrets = append(secrets, p, url.QueryEscape(p))
	}
	if cause == err || //nolint:errorlint // identity: is there a cause apart from err
		slices.ContainsFunc(secrets, func(s string) bool { return s != "" && strings.Contains(text, s) }) {
		return ""
	}
	return ": " + text
}

// serverName names host, port and database, several hosts too.
func serverName(cfg *pgx.ConnConfig) string {
	hosts := []string{HostPort(cfg.Host, cfg.Port)}
	for _, f := range cfg.Fallbacks {
		if h := HostPort(f.Host, f.Port); !slices.Contains(hosts, h) {
			hosts = append(hosts, h)
		}
	}
	return fmt.Sprintf("postgres at %s, database %q", strings.Join(hosts, ","), primary.Name(cfg))
}

// HostPort is the name of a server.
func HostPort(host string, port uint16) string {
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

// connectError returns why there is no connection and what to do.
func connectError(ctx context.Context, name, from string, waited time.Duration, err error) error {
	if pg, is := errors.AsType[*pgconn.PgError](err); is {
		todo := "see the server's log"
		switch pg.Code {
		case codeNoDatabase:
			todo = "create it, or correct " + from
		case codeWrongPassword, codeNotAuthorized:
			todo = "correct user and password in " + from + ", or the server's pg_hba.conf"
		}
		return fmt.Errorf("%s refused the connection: %s (SQLSTATE %s): %s", name, pg.Message, pg.Code, todo)
	}
	reason := connectReason(ctx, waited, err)
	if strings.Contains(reason, "refused TLS connection") {
		return fmt.Errorf(
			"%s has no TLS: add sslmode=disable to %s, for example "+
				"postgres://user@host:5432/name?sslmode=disable, if the network between is private; or else "+
				"switch TLS on in the server",
			name,
			from,
		)
	}
	return fmt.Errorf("cannot reach %s: %s: is the server up, and is %s right?", name, reason, from)
}

// isTimeout reports whether a dial, a read or a write has come to its deadline.
func isTimeout(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
}

// connectReason returns the innermost cause: the errors around it repeat the user and addresses, on
// several lines.
func connectReason(ctx context.Context, waited time.Duration, err error) string {
	var (
		dns  *net.DNSError
		op   *net.OpError
		cert x509.UnknownAuthorityError
	)
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded), isTimeout(err):
		// the deadlines of the dial and of the connection are the same, and may come first
		return fmt.Sprintf("no answer within %v", waited)
	case ctx.Err() != nil:
		return "interrupted"
	case errors.As(err, &dns):
		return dns.Err
	case errors.As(err, &cert):
		return cert.Error()
	case errors.As(err, &op):
		return op.Err.Error()
	}
	if outer, is := errors.AsType[*pgconn.ConnectError](err); is {
		return outer.Unwrap().Error()
	}
	return err.Error()
}

// Explain adds to an error of a statement the server's name and what to do.
func (db *Database) Explain(err error) error {
	var pg *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, migrations.ErrSchema):
		return fmt.Errorf("%s: %w", db.Name, err)
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("interrupted")
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: no answer in time: %w", db.Name, err)
	case !errors.As(err, &pg):
		return fmt.Errorf("%s: %w", db.Name, err)
	}
	todo := ""
	switch pg.Code {
	case codeReadOnly:
		todo = ": it is a standby or set to read-only: connect to the primary (target_session_attrs=read-write)"
	case codeNoPrivilege:
		todo = ": connect as a role that may do this"
	case codeLockTimeout, codeCanceled:
		if strings.HasPrefix(pg.Message, "onlyonce: waited") { // onlyonce.lock_owner
			return fmt.Errorf("%s: %s: nothing was done; pause the partition, or end that session, and try again",
				db.Name, strings.TrimPrefix(pg.Message, "onlyonce: "))
		}
		todo = ": another transaction holds what this one needs: try again"
	}
	return fmt.Errorf("%s: %s (SQLSTATE %s)%s", db.Name, pg.Message, pg.Code, todo)
}
