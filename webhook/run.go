package webhook

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/inbox"
	"github.com/onlyonce/onlyonce/internal/preflight"
	"github.com/onlyonce/onlyonce/internal/process"
	"github.com/onlyonce/onlyonce/internal/ring"
)

// purgeIDsSQL deletes the times of claims whose retention has passed. The ids themselves go with
// their segment of the inbox. In: endpoint, retention. One row: how many. Bounded; by
// the index webhook_ids_age; skips rows that another process has locked (T11).
const purgeIDsSQL = `
with old as (
  select ctid as at from onlyonce.webhook_ids where endpoint = $1 and seen_at < (select least(clock_timestamp(), w.at) from onlyonce.watched w) - $2::interval
   order by seen_at limit 500 for update skip locked),
gone as (delete from onlyonce.webhook_ids w using old where w.ctid = old.at)
select count(*) from old`

// purgeBodiesSQL deletes bodies whose window has passed. In: endpoint, window. One row: how many.
// Bounded; by the index webhook_bodies_age. The DELETE compares the age again, so that a row that a
// request has renewed meanwhile stays (T11).
const purgeBodiesSQL = `
with old as (
  select digest from onlyonce.webhook_bodies where endpoint = $1 and seen_at < (select least(clock_timestamp(), w.at) from onlyonce.watched w) - $2::interval order by seen_at limit 500),
gone as (
  delete from onlyonce.webhook_bodies b using old where b.endpoint = $1 and b.digest = old.digest and b.seen_at < clock_timestamp() - $2::interval returning 1)
select count(*) from gone`

const (
	purgeEvery            = time.Minute
	purgeBatch            = 500
	insufficientPrivilege = "42501"
)

// Run applies stored events, if the endpoint has a handler in mode Stored. It also forgets ids and
// bodies whose retention has passed, rotates the inbox, and runs the Backfill. When ctx ends, it
// drains and returns nil.
//
// Call it at most once per Endpoint. Any number of processes may run it, and an endpoint serves
// requests without it. For example, a process that only receives can leave Handler unset, and one
// that only applies events needs no mux.
//
// It returns an error if the schema does not fit, if the database cannot be reached at the start,
// if the inbox remembers ids for less than Config.Retention (W10), or if [consumer.Consumer.Run]
// does. If the role has no right to delete, Run logs that once: another process must delete old
// ids.
//
// An endpoint of several databases does this in each, and ends if one of them fails.
func (ep *Endpoint) Run(ctx context.Context) error {
	if ep.shards != nil {
		return process.Together(ctx, ep.shards, func(ctx context.Context, one *Endpoint) error { return one.Run(ctx) })
	}
	if ep.worker == nil {
		return ep.runUpkeep(ctx)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	upkeepErr := make(chan error, 1)
	go func() {
		defer stop()
		upkeepErr <- ep.runUpkeep(ctx)
	}()
	err := ep.worker.Run(ctx)
	stop()
	return errors.Join(err, <-upkeepErr)
}

// Ready is for a readiness probe. It returns nil while Run works: it has checked the database, and,
// if it applies stored events, has joined their group. Before that, and from the moment that Run's
// context ends, it returns an error. It makes no query: if the database goes away later, the
// endpoint answers requests with 503, and their senders try again.
func (ep *Endpoint) Ready() error {
	for name, one := range ep.shards {
		if err := one.Ready(); err != nil {
			return fmt.Errorf("database %q: %w", name, err)
		}
	}
	if ep.shards != nil {
		return nil
	}
	if err := ep.begun.Err(); err != nil {
		return fmt.Errorf("webhook: endpoint %s: not ready: %w", ep.cfg.Name, err)
	}
	if ep.worker != nil {
		return ep.worker.Ready()
	}
	return nil
}

// Healthy returns the result of [consumer.Consumer.Healthy] for the endpoint's stored events, or
// nil if Run does not apply them. Use it for alerts and status pages.
func (ep *Endpoint) Healthy() error {
	for name, one := range ep.shards {
		if err := one.Healthy(); err != nil {
			return fmt.Errorf("database %q: %w", name, err)
		}
	}
	if ep.worker == nil {
		return nil
	}
	return ep.worker.Healthy()
}

// runUpkeep is Run without the consumer.
func (ep *Endpoint) runUpkeep(ctx context.Context) error {
	startCtx, cancel := context.WithTimeout(ctx, process.PaceOf(ctx).Start)
	defer cancel()
	roles := []preflight.Role{preflight.Receiver}
	if ep.set != nil {
		roles = append(roles, preflight.Places)
	}
	if _, err := preflight.Check(startCtx, ep.pool.Raw(), roles...); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("webhook: endpoint %s: %w", ep.cfg.Name, err)
	}
	remembered := inbox.Need{Ring: ring.StandardKeys().Name, Scope: Scope(ep.cfg.Name), Copies: ep.cfg.Retention, Whose: "endpoint " + ep.cfg.Name + ": Config.Retention"}
	if err := inbox.CheckHorizon(startCtx, ep.pool.Raw(), remembered); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("webhook: %s: %w", remembered.Whose, err)
	}
	defer ep.begun.Begin(ctx)()
	var rotating sync.WaitGroup
	defer rotating.Wait()
	rotating.Go(func() { inbox.Rotate(ctx, ep.pool.Raw(), ep.cfg.Logger, remembered) })
	ep.purgeAndBackfill(ctx)
	return nil
}

// purgeAndBackfill does both, each at its time, until ctx ends.
func (ep *Endpoint) purgeAndBackfill(ctx context.Context) {
	purgeAt, reconcileAt := time.Now(), time.Now()
	deniedLogged := false
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if !time.Now().Before(purgeAt) {
			purgeAt = time.Now().Add(purgeEvery)
			err := ep.purgeExpired(ctx)
			denied := guard.SQLState(err) == insufficientPrivilege
			if err != nil && ctx.Err() == nil && !(denied && deniedLogged) {
				deniedLogged = deniedLogged || denied
				ep.cfg.Logger.Warn("onlyonce: deleting old webhook ids failed", "endpoint", ep.cfg.Name, "error", err)
			}
		}
		next := purgeAt
		if ep.cfg.Backfill != nil {
			if !time.Now().Before(reconcileAt) {
				wait, err := ep.backfillIfDue(ctx)
				if err != nil && ctx.Err() == nil {
					ep.cfg.Logger.Warn("onlyonce: reconciling webhooks failed", "endpoint", ep.cfg.Name, "error", err)
				}
				reconcileAt = time.Now().Add(wait)
			}
			if reconcileAt.Before(next) {
				next = reconcileAt
			}
		}
		timer.Reset(time.Until(next))
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
	}
}

// purgeExpired deletes batch after batch until none is left.
func (ep *Endpoint) purgeExpired(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, ep.cfg.deadline)
	err := ep.watched.Look(bounded)
	cancel()
	if err != nil {
		return err
	}
	forget := func(sql string, age time.Duration) (all int64, err error) {
		for n := int64(purgeBatch); n == purgeBatch && ctx.Err() == nil; all += n {
			bounded, cancel := context.WithTimeout(ctx, ep.cfg.deadline)
			err := ep.pool.Pinned().QueryRow(bounded, sql, ep.cfg.Name, age).Scan(&n)
			cancel()
			if err != nil {
				return all, err
			}
		}
		return all, nil
	}
	ids, err := forget(purgeIDsSQL, ep.cfg.Retention)
	bodies, err2 := forget(purgeBodiesSQL, ep.cfg.BodyWindow)
	if ids+bodies > 0 && ep.cfg.Hooks.Purged != nil {
		ep.cfg.Hooks.Purged(ids + bodies)
	}
	return errors.Join(err, err2)
}
