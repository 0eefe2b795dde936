package devenv

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/rig/supervise"
)

// ErrNoPgBouncer says that the program is not on this machine.
var ErrNoPgBouncer = errors.New("devenv: no pgbouncer in PATH or /usr/sbin (Debian: apt-get install pgbouncer)")

// PgBouncer is a pooler in transaction mode in front of a server.
type PgBouncer struct {
	// URL is the server's address with the pooler in the place of the server. A client that
	// connects there must not use named prepared statements: see [PgBouncer.Exec].
	URL string
	// How says in one line what was started.
	How string

	sup    *supervise.Supervisor
	closer closer
}

// StartPgBouncer starts PgBouncer in front of the server at an address, in transaction mode, with
// at most poolSize server connections for each database. A client has a server connection only for
// the length of a transaction, so that its next statement may find another session. PgBouncer ends
// with this process.
func StartPgBouncer(ctx context.Context, server string, poolSize int, o Options) (*PgBouncer, error) {
	program, err := findPgBouncer()
	if err != nil {
		return nil, err
	}
	at, err := url.Parse(server)
	if err != nil || at.Host == "" {
		return nil, errors.New("devenv: pgbouncer: the server's address must have the form postgres://user@host:port/database")
	}
	parsed, err := pgx.ParseConfig(server)
	if err != nil {
		return nil, fmt.Errorf("devenv: pgbouncer: %w", err)
	}
	user, err := supervise.ServerUser() // it refuses root too
	if err != nil {
		return nil, err
	}
	sup, err := supervise.Start(ctx, supervise.Config{Bases: o.bases(), Prefix: "onlyonce-pgbouncer-", Owner: user})
	if err != nil {
		return nil, err
	}
	port, err := startPgBouncer(ctx, sup, user, program, poolSize, parsed)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("devenv: pgbouncer: %w", err), sup.Close())
	}
	at.Host = supervise.Loopback(port)
	q := at.Query()
	q.Set("sslmode", "disable") // this hop is on loopback, whatever the server asks for
	at.RawQuery = q.Encode()
	b := &PgBouncer{URL: at.String(), sup: sup,
		How: fmt.Sprintf("pgbouncer: %s on port %d, transaction mode, %d server connections a database", program, port, poolSize)}
	o.log("%s", b.How)
	return b, nil
}

// Exec is URL with pgx's exec mode, in which no statement is prepared under a name:
// PgBouncer knows none before version 1.21, and Debian 12 has 1.18.
func (b *PgBouncer) Exec() string { return b.Mode("exec") }

// Mode is URL with one of pgx's values of default_query_exec_mode.
func (b *PgBouncer) Mode(mode string) string {
	u, err := url.Parse(b.URL)
	if err != nil {
		return b.URL // made from a parsed one
	}
	q := u.Query()
	q.Set("default_query_exec_mode", mode)
	u.RawQuery = q.Encode()
	return u.String()
}

// Stop stops it. It may be called more than once.
func (b *PgBouncer) Stop() error { return b.closer.close(b.sup.Close) }

// startPgBouncer returns the port on which it answers.
func startPgBouncer(
	ctx context.Context,
	sup *supervise.Supervisor,
	user *supervise.User,
	program string,
	poolSize int,
	server *pgx.ConnConfig,
) (port int, err error) {
	ctx, cancel := context.WithTimeout(ctx, supervise.StartTimeout)
	defer cancel()
	// Clients are trusted (it listens on loopback only); the password is for the server.
	users := fmt.Sprintf("\"%s\" \"%s\"\n", quoted(server.User), quoted(server.Password))
	if err := writeFor(user, filepath.Join(sup.Dir(), "users.txt"), users); err != nil {
		return 0, err
	}
	for try := 0; ; try++ {
		ports, err := supervise.FreePorts(1)
		if err != nil {
			return 0, err
		}
		port = ports[0]
		config := filepath.Join(sup.Dir(), "pgbouncer.ini")
		if err := writeFor(user, config, pgBouncerConfig(sup.Dir(), port, poolSize, server)); err != nil {
			return 0, err
		}
		srv, err := sup.StartServer(ctx, supervise.Command{Argv: []string{program, config}, As: user, Stop: supervise.StopTerm})
		if err != nil {
			return 0, err
		}
		through := server.Copy()
		through.Host = "127.0.0.1"
		through.Port = uint16(port)
		through.TLSConfig = nil
		through.Fallbacks = nil
		through.DefaultQueryExecMode = pgx.QueryExecModeExec
		err = supervise.UntilReady(ctx, sup, srv, func(ctx context.Context) error {
			conn, err := pgx.ConnectConfig(ctx, through)
			if err != nil {
				return err
			}
			return errors.Join(conn.Ping(ctx), conn.Close(ctx))
		})
		if err == nil || try == 2 || !strings.Contains(sup.LogTail("server.log"), "Address already in use") {
			return port, err
		}
	}
}

// pgBouncerConfig leads every database to the server.
func pgBouncerConfig(dir string, port, poolSize int, server *pgx.ConnConfig) string {
	tls := "disable"
	if server.TLSConfig != nil {
		tls = "require"
	}
	return strings.Join([]string{
		"[databases]",
		fmt.Sprintf("* = host=%s port=%d", server.Host, server.Port),
		"[pgbouncer]",
		"listen_addr = 127.0.0.1",
		"listen_port = " + strconv.Itoa(port),
		"unix_socket_dir =",
		"auth_type = trust",
		"auth_file = " + filepath.Join(dir, "users.txt"),
		"pool_mode = transaction",
		"default_pool_size = " + strconv.Itoa(poolSize),
		"reserve_pool_size = 0",
		"max_client_conn = 1000",
		"server_tls_sslmode = " + tls,
		// A server connection that was lost is made again at once: its pause of 15 s
		// after a failed one is made for servers that are away.
		"server_login_retry = 1",
		"",
	}, "\n")
}

// writeFor writes a file that only a user can read.
func writeFor(user *supervise.User, path, content string) error {
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		return err
	}
	if user == nil {
		return nil
	}
	return os.Chown(path, int(user.UID), int(user.GID))
}

// quoted doubles quotation marks, as PgBouncer's list of users wants them.
func quoted(s string) string { return strings.ReplaceAll(s, `"`, `""`) }

func findPgBouncer() (string, error) {
	if path, err := exec.LookPath("pgbouncer"); err == nil {
		return path, nil
	}
	const debian = "/usr/sbin/pgbouncer" // not in the PATH of ordinary users
	if st, err := os.Stat(debian); err == nil && st.Mode()&0o111 != 0 {
		return debian, nil
	}
	return "", ErrNoPgBouncer
}
