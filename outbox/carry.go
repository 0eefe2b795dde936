package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/lease"
)

// carrySQL moves calls that stand in the table of schema 2 to where calls are tried again. In: sink, how many. Index outbox_pending; locks the rows. The
// caller holds the lease that relays of that schema send under.
const carrySQL = `
with gone as (
  update onlyonce.outbox o set state = 'parked', settled_at = clock_timestamp()
   where o.id = any (array(select p.id from onlyonce.outbox p where p.sink = $1 and p.state = 'pending' order by p.id limit $2 for no key update))
     and o.state = 'pending'
  returning o.*)
insert into onlyonce.parked (kind, state, reason, error, attempts, tenant, scope, key, sink, lane, call_name, method, target,
                             header_names, header_values, body, next_attempt_at, first_attempt_at)
select 'call', 'retrying', 'carried', g.last_error, g.attempts, g.tenant, g.scope, g.key, g.sink, onlyonce.lane(g.key), g.name, g.method, g.target,
       array(select convert_to(h.v, 'UTF8') from unnest(g.header_names) with ordinality as h(v, n) order by h.n),
       array(select convert_to(h.v, 'UTF8') from unnest(g.header_values) with ordinality as h(v, n) order by h.n), g.body,
       g.next_attempt_at, g.first_attempt_at
  from gone g
on conflict (kind, key) where settled_at is null and reason <> 'conflict'
do update set state = 'retrying', lane = excluded.lane, next_attempt_at = excluded.next_attempt_at, first_attempt_at = excluded.first_attempt_at,
              attempts = excluded.attempts`

// carry takes over calls that were enqueued before schema 3. A relay of that schema that still runs holds the sink's one lease of then; the calls are
// its own until it stops.
func (s *sender) carry(ctx context.Context) error {
	bounded, cancel := s.detached(ctx)
	defer cancel()
	l, err := lease.Acquire(bounded, s.pool, "relay/"+s.name, s.cfg.LeaseTTL)
	if err != nil || l == nil {
		return err
	}
	defer func() {
		ctx, cancel := s.detached(ctx)
		defer cancel()
		_ = l.Release(ctx, s.pool) // it ends by itself
	}()
	for moved := int64(carryLimit); moved == carryLimit && ctx.Err() == nil; {
		err := s.inTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `select onlyonce.hold($1, $2, $3::uuid)`, l.ID, l.Epoch, l.Nonce); err != nil {
				return err
			}
			tag, err := tx.Exec(ctx, carrySQL, s.name, carryLimit)
			moved = tag.RowsAffected()
			return err
		})
		if guard.SQLState(err) == codeFenceLost {
			return nil // it took long; the next look goes on
		}
		if err != nil {
			return fmt.Errorf("taking over calls from the table of schema 2: %w", err)
		}
	}
	return nil
}

const carryLimit = 500

// Statements that delete settled calls whose retention has passed. In: sink, retention, how many. The first by the index parked_settled: those
// whose rows the log has dropped too, so that a call that is enqueued again is still recognised. The second for rows of
// schema 2.
const (
	purgeSQL = `
delete from onlyonce.parked
 where id = any (array(
         select p.id from onlyonce.parked p
          where p.kind = 'call' and p.sink = $1 and p.settled_at <= (select clock_timestamp()) - $2::interval
            and not exists (select 1 from onlyonce.outbox_log r where r.key = p.key)
          order by p.settled_at limit $3))
   and settled_at is not null`
	purgeOldSQL = `
delete from onlyonce.outbox
 where id = any (array(
         select p.id from onlyonce.outbox p
          where p.sink = $1 and p.state <> 'pending' and p.settled_at <= (select clock_timestamp()) - $2::interval limit $3))
   and state <> 'pending'`
)

// purgeLimit bounds a transaction that deletes.
const purgeLimit = 1000

// purge deletes a batch of settled calls whose retention has passed.
func (s *sender) purge(ctx context.Context) error {
	var deleted int64
	for _, sql := range []string{purgeOldSQL, purgeSQL} {
		bounded, cancel := s.detached(ctx)
		var tag pgconn.CommandTag
		tag, err := s.pool.Exec(bounded, sql, s.name, s.cfg.Retention, purgeLimit)
		cancel()
		if guard.SQLState(err) == codeDenied {
			s.cfg.Logger.Warn("outbox: settled calls are not deleted: this relay's role may not; see onlyonce_rotator in docs/roles.sql", "error", err)
			s.purgeAt = time.Now().Add(24 * time.Hour)
			return nil
		}
		if err != nil {
			return fmt.Errorf("deleting settled calls: %w", err)
		}
		deleted += tag.RowsAffected()
	}
	if deleted < purgeLimit {
		s.purgeAt = time.Now().Add(purgeEvery)
	}
	if deleted > 0 {
		s.tell.purged(deleted)
	}
	return nil
}

func (s *sender) inTx(ctx context.Context, fn func(ctx context.Context, tx pgx.Tx) error) error {
	bounded, cancel := s.detached(ctx)
	defer cancel()
	return pgx.BeginTxFunc(bounded, s.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) error { return fn(bounded, tx) })
}
