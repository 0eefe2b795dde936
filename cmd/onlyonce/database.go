package main

import (
	"context"
	"crypto/x509"
	"errors"
	"flag"
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
	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/ops"
)

// envPostgres names the database if -postgres is not given.
const envPostgres = "ONLYONCE_POSTGRES_URL"

const (
	connectTimeout = 8 * time.Second  // of connecting, for all hosts of the address together
	readTimeout    = 60 * time.Second // of a command that only reads
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

// database is a connection and its name for people, without its password.
type database struct {
	*pgx.Conn
	name string
}

// postgresVar declares -postgres.
func postgresVar(fs *flag.FlagSet) *string {
	return fs.String("postgres", "", "the database, as a `URL`: postgres://user@host:5432/name (default: $"+envPostgres+")")
}

// withDatabase connects, runs f and closes. The context of f is ctx.
func (a *app) withDatabase(ctx context.Context, address string, f func(db *database) error) error {
	db, err := a.connect(ctx, address)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		_ = db.Close(ctx) // everything that matters has been committed or answered
	}()
	return db.explain(f(db))
}

// withSchema is withDatabase on a database whose schema fits this program.
func (a *app) withSchema(ctx context.Context, address string, f func(db *database) error) error {
	return a.withDatabase(ctx, address, func(db *database) error {
		if err := db.check(ctx); err != nil {
			return err
		}
		return f(db)
	})
}

// check is migrations.Check with a bound on its time.
func (db *database) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return migrations.Check(ctx, db)
}

// ask runs a question to a database, and prints a line if it takes long. f must not write to
// standard error.
func (a *app) ask(ctx context.Context, address, what string, f func(ctx context.Context, db ops.DB) error) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout+readTimeout)
	defer cancel()
	return a.watch(what, func() error {
		return a.withDatabase(ctx, address, func(db *database) error { return decided(f(ctx, db)) })
	})
}

// config reads the database's address, and returns where it was given. The server shows the
// connections under a name. Their certificates and passwords are read anew for each.
func (a *app) config(ctx context.Context, address, name string) (cfg *pgxpool.Config, from string, err error) {
	if address, from, err = a.address(address); err != nil {
		return nil, "", err
	}
	// An address may have parameters of a pool, which no server knows: see plan connections.
	if cfg, err = pgxpool.ParseConfig(address); err != nil {
		return nil, "", badAddress(from, address, err)
	}
	if cfg.ConnConfig.RuntimeParams["application_name"] == "" {
		cfg.ConnConfig.RuntimeParams["application_name"] = name
	}
	cfg.ConnConfig.OnNotice = a.notice
	if cfg.BeforeConnect, err = renewer(address, cfg.ConnConfig); err == nil {
		err = cfg.BeforeConnect(ctx, cfg.ConnConfig)
	}
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", from, err)
	}
	return cfg, from, nil
}

// pool makes the connections of a command that runs until it is stopped. It does not connect.
func (a *app) pool(ctx context.Context, address, name string) (*pgxpool.Pool, error) {
	cfg, _, err := a.config(ctx, address, name)
	if err != nil {
		return nil, err
	}
	return pgxpool.NewWithConfig(ctx, cfg)
}

func (a *app) connect(ctx context.Context, address string) (*database, error) {
	ctx, cancel := context.WithTimeout(ctx, a.connectTimeout)
	defer cancel()
	pooled, from, err := a.config(ctx, address, "onlyonce")
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
		return nil, connectError(ctx, name, from, a.connectTimeout, err)
	}
	return &database{conn, name}, nil
}

// address returns the database's address and where it was given: in -postgres, or else in the
// environment.
func (a *app) address(flag string) (address, from string, err error) {
	from, address = "-postgres", flag
	if address == "" {
		from, address = envPostgres, a.env(envPostgres)
	}
	if address == "" {
		return "", "", fmt.Errorf("-postgres: no database given: add -postgres postgres://user@host:5432/name, or set %s", envPostgres)
	}
	return address, from, nil
}

func badAddress(from, address string, err error) error {
	return fmt.Errorf("%s: not an address of a database, which has the form postgres://user@host:5432/name%s", from, parseReason(address, err))
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
	text := oneLine(cause.Error())
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
	hosts := []string{hostPort(cfg.Host, cfg.Port)}
	for _, f := range cfg.Fallbacks {
		if h := hostPort(f.Host, f.Port); !slices.Contains(hosts, h) {
			hosts = append(hosts, h)
		}
	}
	return fmt.Sprintf("postgres at %s, database %q", strings.Join(hosts, ","), primary.Name(cfg))
}

func hostPort(host string, port uint16) string {
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
		return fmt.Errorf("%s has no TLS: add sslmode=disable to %s, for example postgres://user@host:5432/name?sslmode=disable, if the network between is private; or else switch TLS on in the server", name, from)
	}
	return fmt.Errorf("cannot reach %s: %s: is the server up, and is %s right?", name, reason, from)
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
	case errors.Is(ctx.Err(), context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded): // the connection's own deadline is the same
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

// explainOrigin is explain for an adoption's error, if it is db's as the origin. Others stay as
// they are.
func (db *database) explainOrigin(err error) error {
	var there *ops.OriginError
	if !errors.As(err, &there) {
		return err
	}
	return fmt.Errorf("%w. Nothing was done, here or there: when it answers, run the command again", db.explain(there.Err))
}

// explain adds to an error of a statement the server's name and what to do.
func (db *database) explain(err error) error {
	var pg *pgconn.PgError
	var wrong *usageError
	var refused *refusal
	switch {
	case err == nil || errors.As(err, &wrong) || errors.As(err, &refused):
		return err
	case errors.Is(err, migrations.ErrSchema):
		return fmt.Errorf("%s: %w", db.name, err)
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("interrupted")
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: no answer in time: %w", db.name, err)
	case !errors.As(err, &pg):
		return fmt.Errorf("%s: %w", db.name, err)
	}
	todo := ""
	switch pg.Code {
	case codeReadOnly:
		todo = ": it is a standby or set to read-only: connect to the primary (target_session_attrs=read-write)"
	case codeNoPrivilege:
		todo = ": connect as a role that may do this"
	case codeLockTimeout, codeCanceled:
		if strings.HasPrefix(pg.Message, "onlyonce: waited") { // onlyonce.lock_owner
			return fmt.Errorf("%s: %s: nothing was done; pause the partition, or end that session, and try again", db.name, strings.TrimPrefix(pg.Message, "onlyonce: "))
		}
		todo = ": another transaction holds what this one needs: try again"
	}
	return fmt.Errorf("%s: %s (SQLSTATE %s)%s", db.name, pg.Message, pg.Code, todo)
}
