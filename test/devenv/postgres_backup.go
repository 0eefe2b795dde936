package devenv

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/rig/pgserver"
)

// ArchiveSettings are the settings of a server of which [Postgres.Backup] is called.
func ArchiveSettings() map[string]string { return pgserver.Archiving() }

// Backup makes a base backup of this server while it works. Nothing runs on it until
// [Postgres.Recover].
func (p *Postgres) Backup(ctx context.Context, o Options) (*Postgres, error) {
	if p.local == nil {
		return nil, errNotSupervised
	}
	b, err := p.local.Backup(ctx, pgserver.Config{Bases: o.postgresBases(), Settings: o.PostgresSettings})
	if err != nil {
		return nil, err
	}
	return &Postgres{Kind: p.Kind, Dir: b.Dir(), local: b, stop: b.Stop}, nil
}

// RestorePoint names the present point of the server's history.
func (p *Postgres) RestorePoint(ctx context.Context, name string) error {
	return p.exec(ctx, `select pg_create_restore_point($1)`, name)
}

// Archived waits until all that the server has written so far is in its archive.
func (p *Postgres) Archived(ctx context.Context) error {
	var segment string
	err := p.connected(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `select pg_walfile_name(pg_switch_wal())`).Scan(&segment)
	})
	if err != nil {
		return err
	}
	return p.awaitTrue(ctx, "the WAL is archived", `select coalesce(last_archived_wal >= $1, false) from pg_stat_archiver`, segment)
}

// Recover starts a base backup, recovered to a point of the history of the server that it is of,
// and returns when it takes writes. That server may be dead, but not stopped.
func (p *Postgres) Recover(ctx context.Context, from *Postgres, point string) error {
	if err := p.local.Recover(ctx, from.local, point); err != nil {
		return err
	}
	p.URL, p.Version = p.local.URL(), p.local.Version()
	return p.awaitTrue(ctx, "the backup is recovered", `select not pg_is_in_recovery()`)
}
