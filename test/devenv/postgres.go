package devenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/onlyonce/onlyonce/internal/rig/pgserver"
)

// Postgres is a server that was found or started.
type Postgres struct {
	// URL leads to the database postgres, as a superuser when devenv started
	// the server.
	URL string
	// How says in one line what was taken and why.
	How string
	// Version is the server's, such as 17.5.
	Version string
	// Kind is one of the Kind constants.
	Kind string
	// Dir is the directory of a server that devenv started on this machine; it
	// holds data/ and server.log and is gone after Stop. Otherwise empty.
	Dir string

	local  *pgserver.Cluster // nil unless supervised
	stop   func() error      // nil when there is nothing to stop
	closer closer
}

// StartPostgres finds or starts a server; the package comment has the order.
func StartPostgres(ctx context.Context, o Options) (*Postgres, error) {
	p, err := startPostgres(ctx, o)
	if err != nil {
		return nil, err
	}
	o.log("%s", p.How)
	return p, nil
}

func startPostgres(ctx context.Context, o Options) (*Postgres, error) {
	major, err := o.postgresVersion()
	if err != nil {
		return nil, err
	}
	if os.Getenv(EnvPostgresURL) != "" && !o.Own {
		return givenPostgres(ctx, major)
	}
	if major != "" {
		return first(ctx, "postgres "+major, o, []way[Postgres]{{KindEmbedded, startEmbeddedPostgres}})
	}
	return first(ctx, "postgres", o, []way[Postgres]{
		{KindLocal, startLocalPostgres},
		{KindEmbedded, startEmbeddedPostgres},
		{KindDocker, startDockerPostgres},
	})
}

// Stop stops the server and removes its data, if devenv started it. It may be
// called more than once.
func (p *Postgres) Stop() error {
	return p.closer.close(func() error {
		if p.stop == nil {
			return nil
		}
		return p.stop()
	})
}

// errNotSupervised is the answer to Kill and Restart on a server that is not a
// process of ours.
var errNotSupervised = errors.New("devenv: only a server that devenv started on this machine can be killed, " +
	"restarted, paused and continued")

// Kill kills the server's processes with SIGKILL. Its data stays for Restart.
func (p *Postgres) Kill(ctx context.Context) error {
	if p.local == nil {
		return errNotSupervised
	}
	return p.local.Kill(ctx)
}

// Restart starts a killed server on the same port and data, and returns after it has recovered.
func (p *Postgres) Restart(ctx context.Context) error {
	if p.local == nil {
		return errNotSupervised
	}
	return p.local.Restart(ctx)
}

// Pause suspends all of the server's processes (SIGSTOP): clients keep their connections and get no
// answer, as from a machine that hangs. Linux only.
func (p *Postgres) Pause(ctx context.Context) error {
	if p.local == nil {
		return errNotSupervised
	}
	return p.local.Pause(ctx)
}

// Continue lets a paused server go on.
func (p *Postgres) Continue(ctx context.Context) error {
	if p.local == nil {
		return errNotSupervised
	}
	return p.local.Continue(ctx)
}

// PID is the process id of the server's first process, for a test that wants to
// stop or slow it; 0 unless devenv started it on this machine.
func (p *Postgres) PID() int {
	if p.local == nil {
		return 0
	}
	return p.local.PID()
}

// postgresVersion is the major version that was asked for, or "".
func (o Options) postgresVersion() (string, error) {
	major := o.PostgresVersion
	from := "Options.PostgresVersion"
	if major == "" {
		major = os.Getenv(EnvPostgresVersion)
		from = EnvPostgresVersion
	}
	if _, ok := embedded[major]; major != "" && !ok {
		return "", fmt.Errorf("devenv: %s is %q; it can be one of %s", from, major, strings.Join(PostgresVersions(), ", "))
	}
	return major, nil
}

func givenPostgres(ctx context.Context, major string) (*Postgres, error) {
	given, version, err := pgserver.Given(ctx)
	if err != nil {
		return nil, fmt.Errorf("devenv: %w", err)
	}
	if major != "" && !strings.HasPrefix(version, major+".") {
		return nil, fmt.Errorf("devenv: PostgreSQL %s was asked for, and %s leads to %s", major, EnvPostgresURL, version)
	}
	return &Postgres{
		URL:  given,
		Kind: KindURL, Version: version,
		How: fmt.Sprintf("postgres: %s at %s (%s is set)", version, pgserver.Redacted(given), EnvPostgresURL),
	}, nil
}

func startLocalPostgres(ctx context.Context, o Options, why string) (*Postgres, error) {
	bin, err := pgserver.Programs()
	if err != nil {
		return nil, err
	}
	return startCluster(ctx, o, KindLocal, bin, why)
}

// startCluster makes a cluster with the programs in bin and starts it.
func startCluster(ctx context.Context, o Options, kind, bin, why string) (*Postgres, error) {
	c, err := pgserver.Start(ctx, pgserver.Config{Bin: bin, Bases: o.postgresBases(), Settings: o.PostgresSettings, Env: o.PostgresEnv})
	if err != nil {
		return nil, err
	}
	return &Postgres{
		URL:  c.URL(),
		Kind: kind, Version: c.Version(),
		How: fmt.Sprintf("postgres: %s, %s %s (%s)", c.Version(), kind, c, why),
		Dir: c.Dir(), local: c, stop: c.Stop,
	}, nil
}
