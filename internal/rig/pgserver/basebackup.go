package pgserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Clone makes a cluster and starts its server as a streaming standby of c. name is its
// application_name, and the slot that it has at c already: WAL of the backup stays there until it
// streams.
func (c *Cluster) Clone(ctx context.Context, name string, cfg Config) (*Cluster, error) {
	s, err := c.Backup(ctx, cfg)
	if err != nil {
		return nil, err
	}
	follows := fmt.Sprintf("primary_conninfo = 'host=127.0.0.1 port=%d user=postgres sslmode=disable "+
		"application_name=%s'\nprimary_slot_name = '%s'\n", c.port, name, name)
	err = errors.Join(s.write("postgresql.auto.conf", follows), s.write("standby.signal", ""))
	if err == nil {
		err = s.startAnywhere(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.sup.Close())
	}
	return s, nil
}

// Archiving are the settings of a server that has its WAL archived, for Backup.
func Archiving() map[string]string {
	return map[string]string{"archive_mode": "on", "archive_command": "mkdir -p ../archive && cp %p ../archive/%f"}
}

// Recover starts the server of a base backup, recovers it from the archive of the cluster that the
// backup is of to a named restore point, and promotes it.
func (c *Cluster) Recover(ctx context.Context, from *Cluster, point string) error {
	c.settings = maps.Clone(c.settings)
	maps.Copy(c.settings, map[string]string{
		"restore_command":        "cp '" + filepath.Join(from.sup.Dir(), "archive") + "/%f' %p",
		"recovery_target_name":   point,
		"recovery_target_action": "promote",
	})
	if err := c.write("recovery.signal", ""); err != nil {
		return err
	}
	return c.startAnywhere(ctx)
}

// Backup makes a base backup of c. It starts no server. The WAL that it needs must be kept: by an
// archive (the settings Archiving), or by a slot. It uses the low-level functions (PostgreSQL 14 to
// 18, chapter 26.3.3), because embedded binaries have no pg_basebackup.
func (c *Cluster) Backup(ctx context.Context, cfg Config) (_ *Cluster, err error) {
	cfg.Bin = c.bin
	s, err := prepare(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("pgserver: base backup: %w", err), s.sup.Close())
		}
	}()
	conn, err := pgx.Connect(ctx, c.URL())
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // also ends a backup that was not stopped
	start := "select pg_backup_start('copy', true)"
	stop := "select labelfile from pg_backup_stop()"
	if strings.HasPrefix(c.Version(), "14.") {
		start = "select pg_start_backup('copy', true, false)"
		stop = "select labelfile from pg_stop_backup(false)"
	}
	if _, err := conn.Exec(ctx, start); err != nil {
		return nil, err
	}
	if err := s.copyData(c.data()); err != nil {
		return nil, err
	}
	var label string
	if err := conn.QueryRow(ctx, stop).Scan(&label); err != nil {
		return nil, err
	}
	return s, s.write("backup_label", label)
}

// unbacked are directories that a server fills itself when it starts from a backup.
var unbacked = map[string]bool{"pg_dynshmem": true, "pg_notify": true, "pg_replslot": true, "pg_serial": true, "pg_snapshots": true,
	"pg_stat_tmp": true, "pg_subtrans": true, "pg_wal": true, "pgsql_tmp": true}

// copyData copies the data of a server that runs. Files may vanish meanwhile, or change: WAL that
// follows the start of the backup sets them right.
func (c *Cluster) copyData(from string) error {
	return filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		to := filepath.Join(c.data(), rel)
		switch {
		case e.IsDir():
			if err := errors.Join(os.Mkdir(to, 0o700), c.own(to)); err != nil || !unbacked[e.Name()] {
				return err
			}
			return fs.SkipDir
		case !e.Type().IsRegular(), e.Name() == "postmaster.pid", e.Name() == "postmaster.opts":
			return nil
		}
		return c.copyFile(path, rel)
	})
}

func (c *Cluster) copyFile(from, rel string) error {
	src, err := os.Open(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	return c.append(rel, src)
}

// write appends to a file of the cluster's data.
func (c *Cluster) write(rel, text string) error { return c.append(rel, strings.NewReader(text)) }

func (c *Cluster) append(rel string, r io.Reader) error {
	path := filepath.Join(c.data(), rel)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close(), c.own(path))
}

// own gives a file to the server's user.
func (c *Cluster) own(path string) error {
	if c.user == nil {
		return nil
	}
	return os.Chown(path, int(c.user.UID), int(c.user.GID))
}
