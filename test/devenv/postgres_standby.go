package devenv

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/rig/pgserver"
)

// switchTimeout bounds a change of roles: a promotion, a standby that lets go or
// catches up.
const switchTimeout = 60 * time.Second

// Standby starts a streaming standby of this server, with a supervisor and a directory of its own,
// and returns when it streams. It is asynchronous until [Postgres.Synchronous] names it. The name,
// of lower-case letters, digits and underscores, is its application_name and its slot at this
// server. A later standby of the same name takes the slot over.
func (p *Postgres) Standby(ctx context.Context, name string, o Options) (*Postgres, error) {
	if p.local == nil {
		return nil, errors.New("devenv: only a server that devenv started on this machine can have a standby here")
	}
	l := p.local
	// With a slot the WAL between the backup and the first streaming cannot be recycled.
	if err := errors.Join(p.exec(ctx, dropSlotSQL, name), p.exec(ctx, makeSlotSQL, name)); err != nil {
		return nil, err
	}
	s, err := l.Clone(ctx, name, pgserver.Config{Bases: o.postgresBases(), Settings: o.PostgresSettings})
	if err != nil {
		return nil, err
	}
	standby := &Postgres{
		URL: s.URL(), Kind: p.Kind, Version: s.Version(), Dir: s.Dir(), local: s, stop: s.Stop,
		How: fmt.Sprintf("postgres: %s, standby %s of port %d on port %d", s.Version(), name, l.Port(), s.Port()),
	}
	if err := p.awaitTrue(ctx, "the standby streams", streamsSQL, name); err != nil {
		return nil, errors.Join(err, standby.Stop())
	}
	o.log("%s", standby.How)
	return standby, nil
}

// dropSlotSQL drops a slot that a standby of the same name has left. $1 its name.
const dropSlotSQL = `select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = $1 and not active`

// makeSlotSQL makes a slot that keeps WAL from now on. $1 its name.
const makeSlotSQL = `select pg_create_physical_replication_slot($1, true)`

// streamsSQL returns one row: whether a standby gets the WAL as it is written. $1 its name.
const streamsSQL = `select exists (select from pg_stat_replication where application_name = $1 and state = 'streaming')`

// caughtUpSQL returns one row: whether a standby has flushed all that is written up to now. $1 its
// name, $2 the WAL position.
const caughtUpSQL = `select exists (select from pg_stat_replication where application_name = $1 and flush_lsn >= $2::pg_lsn)`

// CaughtUp waits until the standby of that name has flushed all that this server has written so
// far.
func (p *Postgres) CaughtUp(ctx context.Context, name string) error {
	var now string
	err := p.connected(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `select pg_current_wal_lsn()::text`).Scan(&now)
	})
	if err != nil {
		return err
	}
	return p.awaitTrue(ctx, "the standby catches up", caughtUpSQL, name, now)
}

// Synchronous makes every COMMIT of this server wait until the named standbys have it. The names
// are in the form of synchronous_standby_names. If they are empty, it waits for none.
func (p *Postgres) Synchronous(ctx context.Context, standbys string) error {
	if err := p.set(ctx, "synchronous_standby_names", standbys); err != nil {
		return err
	}
	return p.awaitTrue(ctx, "a standby is synchronous, or none has to be", synchronousSQL, standbys)
}

// synchronousSQL returns one row: whether commits wait for standbys as set. Each walsender reads
// the setting for itself. $1 as set.
const synchronousSQL = `select current_setting('synchronous_standby_names') = $1
	and ($1 = '') = not exists (select from pg_stat_replication where sync_state in ('sync', 'quorum'))`

// Detach makes a standby lose its primary. It receives nothing from here on, so that later commits
// of the primary are lost when the standby is promoted. Neither pg_wal_replay_pause nor a suspended
// walreceiver would do that for certain: what was received is replayed at the promotion.
func (p *Postgres) Detach(ctx context.Context) error {
	if err := p.set(ctx, "primary_conninfo", ""); err != nil {
		return err
	}
	return p.awaitTrue(ctx, "the standby receives nothing any more",
		`
select pg_is_in_recovery()
and current_setting('primary_conninfo') = ''
and not exists (select from pg_stat_wal_receiver)`)
}

// Promote makes a standby a primary, on a timeline of its own, and returns when it takes writes.
func (p *Postgres) Promote(ctx context.Context) error {
	return p.awaitTrue(ctx, "the standby is promoted", `select pg_promote(true, 30)`)
}

// set changes a setting for good, and makes the server read it.
func (p *Postgres) set(ctx context.Context, name, value string) error {
	return p.connected(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		// ALTER SYSTEM takes no parameters; the names are ours, the value is quoted.
		quoted, err := conn.PgConn().EscapeString(value)
		if err != nil {
			return err
		}
		if _, err := conn.Exec(ctx, "alter system set "+name+" = '"+quoted+"'"); err != nil {
			return err
		}
		_, err = conn.Exec(ctx, `select pg_reload_conf()`)
		return err
	})
}

func (p *Postgres) exec(ctx context.Context, sql string, args ...any) error {
	return p.connected(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql, args...)
		return err
	})
}

// awaitTrue asks until the answer is true.
func (p *Postgres) awaitTrue(ctx context.Context, what, sql string, args ...any) error {
	return p.connected(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			var yes bool
			if err := conn.QueryRow(ctx, sql, args...).Scan(&yes); err != nil {
				return fmt.Errorf("devenv: waiting until %s: %w", what, err)
			}
			if yes {
				return nil
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return fmt.Errorf("devenv: waiting until %s: %w; the end of the server's log:\n%s", what, ctx.Err(), p.local.LogTail())
			}
		}
	})
}

// connected lends a connection, for at most switchTimeout.
func (p *Postgres) connected(ctx context.Context, do func(context.Context, *pgx.Conn) error) error {
	if p.local == nil {
		return errNotSupervised
	}
	ctx, cancel := context.WithTimeout(ctx, switchTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, p.URL)
	if err != nil {
		return err
	}
	return errors.Join(do(ctx, conn), conn.Close(context.WithoutCancel(ctx)))
}
