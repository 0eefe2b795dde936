package webhook

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/inbox"
	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/internal/preflight"
	"github.com/onlyonce/onlyonce/internal/presence"
	"github.com/onlyonce/onlyonce/internal/process"
	"github.com/onlyonce/onlyonce/internal/ring"
)

// purgeIDsSQL deletes the times of claims whose retention has passed. The ids themselves go with
// their segment of the inbox. In: endpoint, retention, how many at most. One row: how many it
// deleted. By the index webhook_ids_age. It skips rows that another process has locked (T11).
const purgeIDsSQL = `
with old as (
  select ctid as at
    from onlyonce.webhook_ids
   where endpoint = $1 and seen_at < (select least(clock_timestamp(), w.at) from onlyonce.watched w) - $2::interval
   order by seen_at limit $3 for update skip locked),
gone as (delete from onlyonce.webhook_ids w using old where w.ctid = old.at)
select count(*) from old`

// purgeBodiesSQL deletes bodies whose window has passed. In: endpoint, window, how many at most.
// One row: how many it deleted. By the index webhook_bodies_age. The DELETE compares the age again,
// so that a row that a request has renewed meanwhile stays (T11).
const purgeBodiesSQL = `
with old as (
  select digest
    from onlyonce.webhook_bodies
   where endpoint = $1 and seen_at < (select least(clock_timestamp(), w.at) from onlyonce.watched w) - $2::interval
   order by seen_at limit $3),
gone as (
  delete from onlyonce.webhook_bodies b
   using old
   where b.endpoint = $1 and b.digest = old.digest and b.seen_at < clock_timestamp() - $2::interval returning 1)
select count(*) from gone`

const (
	purgeEvery = time.Minute
	// forgottenAtOnce is how many ids or bodies one statement deletes at most.
	forgottenAtOnce       = 500
	insufficientPrivilege = "42501"
)

// Upkeep forgets ids and bodies whose retention has passed, rotates the inbox, and runs the
// Backfill, until ctx ends; then it returns nil. [Endpoint.Run] calls it. Call it yourself in a
// process that only receives, and in modes Inline and ForwardOnly.
//
// Any number of processes may run it, but each Endpoint only once. An endpoint serves requests
// without it.
//
// It returns an error if the schema does not fit, if the database cannot be reached at the start,
// or if the inbox remembers ids for less than Config.Retention (W10). If the role has no right to
// delete, Upkeep logs that once: another process must delete old ids.
//
// An endpoint of several databases does this in each, and ends if one of them fails.
func (ep *Endpoint) Upkeep(ctx context.Context) error {
	if ep.shards != nil {
		return process.Together(ctx, ep.shards, func(ctx context.Context, one *Endpoint) error {
			return one.Upkeep(ctx)
		})
	}
	if !ep.kept.CompareAndSwap(false, true) {
		return fmt.Errorf("webhook: endpoint %s: Run or Upkeep of this Endpoint works already", ep.cfg.Name)
	}
	defer ep.kept.Store(false)
	startCtx, cancel := process.AtStart(ctx)
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
	remembered := inbox.Need{
		Ring:   ring.StandardKeys().Name,
		Scope:  Scope(ep.cfg.Name),
		Copies: ep.cfg.Retention,
		Whose:  "endpoint " + ep.cfg.Name + ": Config.Retention",
	}
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
	rotating.Go(func() { ep.reporter().Run(ctx) })
	ep.purgeAndBackfill(ctx)
	return nil
}

// faultStore is the kind of an endpoint's faults, as onlyonce.owners.faults has it.
const faultStore = "store"

// reporter reports the endpoint (S3).
func (ep *Endpoint) reporter() *presence.Reporter {
	return &presence.Reporter{
		Pool:   ep.pool,
		Part:   presence.Endpoint,
		Scopes: []string{ep.cfg.Name},
		Faults: func(string) []presence.Fault {
			since, err := ep.storing.Trouble()
			return presence.Since(faultStore, since, err)
		},
		Logger: ep.cfg.Logger,
	}
}

// purgeAndBackfill does both, each at its time, until ctx ends.
func (ep *Endpoint) purgeAndBackfill(ctx context.Context) {
	purgeAt := time.Now()
	reconcileAt := time.Now()
	deniedLogged := false
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if !time.Now().Before(purgeAt) {
			purgeAt = time.Now().Add(purgeEvery)
			err := ep.purgeExpired(ctx)
			denied := guard.SQLState(err) == insufficientPrivilege
			logged := denied && deniedLogged
			if err != nil && ctx.Err() == nil && !logged {
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
	ids, err := ep.forget(ctx, ep.oldIDs, purgeIDsSQL, ep.cfg.Retention)
	bodies, err2 := ep.forget(ctx, ep.oldBodies, purgeBodiesSQL, ep.cfg.BodyWindow)
	if ids+bodies > 0 && ep.cfg.Hooks.Forgotten != nil {
		ep.cfg.Hooks.Forgotten(ids + bodies)
	}
	return errors.Join(err, err2)
}

// forget deletes portion after portion of what is older than age, until none is left. It returns
// how many it has deleted.
func (ep *Endpoint) forget(
	ctx context.Context,
	portion *pace.Portion,
	sql string,
	age time.Duration,
) (all int64, err error) {
	err = portion.All(ctx, func(most int) (n int, err error) {
		bounded, cancel := context.WithTimeout(ctx, ep.cfg.deadline)
		defer cancel()
		err = ep.pool.Pinned().QueryRow(bounded, sql, ep.cfg.Name, age, most).Scan(&n)
		all += int64(n)
		return n, err
	})
	return all, err
}
