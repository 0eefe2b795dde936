// Package retention deletes rows that nothing needs any more, once their retention has passed:
// settled parked messages and events, audit rows, and objects of webhooks.
//
// Processes whose role has the rights of onlyonce_rotator run a Purger. How long each kind is kept
// is in the database, onlyonce.retentions, so it does not matter which process deletes. A statement
// deletes a portion by an index and commits; one runs at a time in a database.
//
// # Why a row may go
//
//   - A settled message or event: no statement of an engine looks at it. Its key is claimed when
//     the row is parked, and again when it is settled; and its offset is below the position (D8).
//   - An audit row: only people read it. A trigger refuses to delete a younger one.
//   - An object of webhooks: rule W21 has the interleavings.
//
// Settled calls have a retention for each sink, which its relay deletes by (outbox/purge.go).
package retention

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/internal/watch"
)

// alone makes a statement do nothing while another process deletes.
const alone = `(select pg_try_advisory_xact_lock(` + names.PurgeLocks + `, 1))`

// nowSQL is the time by which rows are old: by the clock and by watched time (T11).
const nowSQL = `(select least(clock_timestamp(), w.at) from onlyonce.watched w)`

// purgeParkedSQL deletes settled messages and events. In: how many rows. By the index
// parked_settled_messages.
const purgeParkedSQL = `
delete from onlyonce.parked
 where ` + alone + ` and settled_at is not null and id = any (array(
   select p.id from onlyonce.parked p
    where p.kind <> 'call'
      and p.settled_at <= (select ` + nowSQL + ` - r.keep from onlyonce.retentions r where r.kind = 'parked')
    order by p.settled_at limit $1))`

// purgeAuditSQL deletes audit rows. In: how many rows. By the index audit_age.
const purgeAuditSQL = `
delete from onlyonce.audit
 where ` + alone + ` and id = any (array(
   select a.id from onlyonce.audit a
    where a.at <= (select ` + nowSQL + ` - r.keep from onlyonce.retentions r where r.kind = 'audit')
    order by a.at limit $1))`

// purgeObjectsSQL deletes objects of webhooks that no event touched for their retention, if no
// older event of theirs can be handled any more (W21). changed_at is up to a day too early. In: how
// many rows. By the index webhook_objects_age; it looks at four times as many rows as it deletes,
// and at the unsettled rows and the cursors of their scopes. An event that changes an object
// meanwhile changes its ctid, and the row stays.
const purgeObjectsSQL = `
with bound as materialized (
  select ` + nowSQL + ` as now,
         k.keep,
         k.keep / 2 as late,
         case when exists (select from onlyonce.event_log) then min(s.opened_at) end as logged
    from (select greatest(r.keep, 2 * onlyonce.webhook_horizon()) + interval '1 day' as keep from onlyonce.retentions r
           where r.kind = 'webhook_objects' and r.keep is not null) k
    left join onlyonce.segments s on s.ring = 'events'
   group by k.keep),
old as materialized (
  select o.ctid as at, o.scope, o.changed_at from onlyonce.webhook_objects o
   where o.changed_at <= (select least(b.now - b.keep, b.logged - b.late) from bound b)
   order by o.changed_at limit 4 * $1),
busy as materialized (
  select s.scope, (select case when bool_or(f.frontier is null) then '-infinity' else min(f.frontier) end
                     from onlyonce.cursors c left join onlyonce.frontiers f on f.cursor_id = c.id and f.run = c.run
                    where c.scope = s.scope
                      and c.retired_at is null
                      and c.cluster_id is distinct from 'postgres') as handled
    from (select distinct scope from old) s
   where not exists (select from onlyonce.parked p
                      where p.scope = s.scope and p.kind <> 'call' and p.settled_at is null))
delete from onlyonce.webhook_objects
 where ` + alone + ` and ctid = any (array(
   select o.at from old o join busy b on b.scope = o.scope
    where b.handled is null or o.changed_at < b.handled - (select late from bound) limit $1))`

const (
	// often is how often a process looks for rows whose retention has passed.
	often = time.Minute
	// deletedAtOnce is how many rows one transaction deletes at most.
	deletedAtOnce = 1000
	// rest is how long a process waits between two portions, in times that the first has taken.
	rest = 4
	// answerTimeout bounds a statement.
	answerTimeout = 30 * time.Second
	// rightsRecheck is how long a process waits if its role lacks rights.
	rightsRecheck = time.Hour

	insufficientPrivilege = "42501"
)

var purges = []struct{ kind, sql string }{
	{"parked", purgeParkedSQL},
	{"audit", purgeAuditSQL},
	{"webhook_objects", purgeObjectsSQL},
}

// Purger deletes in one database. It must be used by one goroutine.
type Purger struct {
	pool     *primary.Pool
	watched  *watch.Clock
	log      *slog.Logger
	portions map[string]*pace.Portion // of each kind
}

// New returns a Purger. It shares watched with others of its process; nil: it has its own.
func New(pool *pgxpool.Pool, watched *watch.Clock, log *slog.Logger) *Purger {
	db := primary.Of(pool, log).Pinned()
	if watched == nil {
		watched = watch.New(db, watch.Often)
	}
	portions := map[string]*pace.Portion{}
	for _, of := range purges {
		portions[of.kind] = pace.NewPortion(deletedAtOnce)
	}
	return &Purger{pool: db, watched: watched, log: log, portions: portions}
}

// Run deletes until ctx ends. Faults are logged, and never fail the caller. It calls denied when
// the role may not delete, and looks again after an hour. The first look is after one interval,
// because a process that starts has more urgent work.
func (p *Purger) Run(ctx context.Context, denied func()) {
	for wait := often; pace.Sleep(ctx, wait); {
		wait = often
		err := p.Purge(ctx)
		switch {
		case err == nil || ctx.Err() != nil:
		case guard.SQLState(err) == insufficientPrivilege:
			wait = rightsRecheck
			denied()
		default:
			p.log.Warn("onlyonce: deleting rows whose retention has passed failed", "error", err)
		}
	}
}

// Purge deletes portion after portion of each kind, until none is left or ctx ends (D8).
func (p *Purger) Purge(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	if err := p.watched.Look(bounded); err != nil {
		return err
	}
	var faults []error
	for _, of := range purges {
		deleted, err := p.all(ctx, p.portions[of.kind], of.sql)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", of.kind, err))
		}
		if deleted > 0 {
			p.log.Info("onlyonce: rows whose retention has passed were deleted", "kind", of.kind, "rows", deleted)
		}
	}
	return errors.Join(faults...)
}

// all deletes the rows of one kind. It returns how many.
func (p *Purger) all(ctx context.Context, portion *pace.Portion, sql string) (deleted int64, err error) {
	err = portion.All(ctx, func(most int) (int, error) {
		bounded, cancel := context.WithTimeout(ctx, answerTimeout)
		defer cancel()
		began := time.Now()
		tag, err := p.pool.Exec(bounded, sql, most)
		n := int(tag.RowsAffected())
		deleted += int64(n)
		if n == most {
			pace.Sleep(ctx, rest*time.Since(began))
		}
		return n, err
	})
	return deleted, err
}
