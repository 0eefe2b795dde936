package webhook

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/inbox"
	"github.com/onlyonce/onlyonce/internal/lease"
	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/internal/preflight"
)

// purgeIDsSQL deletes the times of claims whose retention has passed. The ids themselves go with
// their segment of the ring standard_keys. In: endpoint, retention. One row: how many. Bounded; by
// the index webhook_ids_age; skips rows that another process has locked.
const purgeIDsSQL = `
with old as (
  select ctid as at from onlyonce.webhook_ids where endpoint = $1 and seen_at < clock_timestamp() - $2::interval
   order by seen_at limit 500 for update skip locked),
gone as (delete from onlyonce.webhook_ids w using old where w.ctid = old.at)
select count(*) from old`

// purgeBodiesSQL deletes bodies whose window has passed. In: endpoint, window. One row: how many.
// Bounded; by the index webhook_bodies_age. The DELETE compares the age again, so that a row that a
// request has renewed meanwhile stays.
const purgeBodiesSQL = `
with old as (
  select digest from onlyonce.webhook_bodies where endpoint = $1 and seen_at < clock_timestamp() - $2::interval order by seen_at limit 500),
gone as (
  delete from onlyonce.webhook_bodies b using old where b.endpoint = $1 and b.digest = old.digest and b.seen_at < clock_timestamp() - $2::interval returning 1)
select count(*) from gone`

const (
	purgeEvery = time.Minute
	purgeBatch = 500
)

// Run applies stored events, if the endpoint has a handler in mode Inbox. It also forgets ids and
// bodies whose retention has passed, rotates the inbox, and reconciles. When ctx ends, it drains
// and returns nil.
//
// It may be called once per Endpoint. Any number of processes may run it, and requests are served
// without it. For example a process that only receives can leave Handler unset, and one that only
// works needs no mux.
//
// It returns an error if the schema does not fit, if the database cannot be reached at the start,
// if the inbox remembers ids for less than Config.Retention (W10), and whatever
// [consumer.Consumer.Run] returns. If the role has no right to delete, that is logged once: another
// process must forget.
func (r *Endpoint) Run(ctx context.Context) error {
	if r.worker == nil {
		return r.upkeep(ctx)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	kept := make(chan error, 1)
	go func() {
		defer stop()
		kept <- r.upkeep(ctx)
	}()
	err := r.worker.Run(ctx)
	stop()
	return errors.Join(err, <-kept)
}

// upkeep is Run without the consumer.
func (r *Endpoint) upkeep(ctx context.Context) error {
	asking, asked := context.WithTimeout(ctx, pace.Start)
	defer asked()
	if _, err := preflight.Check(asking, r.pool, preflight.Receiver); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("webhook: endpoint %s: %w", r.cfg.Name, err)
	}
	remembered := inbox.Need{Ring: "standard_keys", Copies: r.cfg.Retention, Whose: "endpoint " + r.cfg.Name + ": Config.Retention"}
	if err := inbox.CheckHorizon(asking, r.pool, remembered); err != nil {
		return fmt.Errorf("webhook: %s: %w", remembered.Whose, err)
	}
	rotating := make(chan struct{})
	defer func() { <-rotating }()
	go func() {
		defer close(rotating)
		inbox.Rotate(ctx, r.pool, r.cfg.Logger, remembered)
	}()
	purgeAt, reconcileAt := time.Now(), time.Now()
	told := false
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if !time.Now().Before(purgeAt) {
			purgeAt = time.Now().Add(purgeEvery)
			if err := r.purge(ctx); err != nil && ctx.Err() == nil && !(told && guard.SQLState(err) == "42501") {
				told = told || guard.SQLState(err) == "42501"
				r.cfg.Logger.Warn("onlyonce: forgetting old ids of webhooks failed", "endpoint", r.cfg.Name, "error", err)
			}
		}
		next := purgeAt
		if r.cfg.Reconcile != nil {
			if !time.Now().Before(reconcileAt) {
				wait, err := r.reconcile(ctx)
				if err != nil && ctx.Err() == nil {
					r.cfg.Logger.Warn("onlyonce: reconciling webhooks failed", "endpoint", r.cfg.Name, "error", err)
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
			return nil
		}
	}
}

// purge deletes batch after batch until none is left.
func (r *Endpoint) purge(ctx context.Context) error {
	forget := func(sql string, age time.Duration) (all int64, err error) {
		for n := int64(purgeBatch); n == purgeBatch && ctx.Err() == nil; all += n {
			bounded, cancel := context.WithTimeout(ctx, r.cfg.Deadline)
			err := r.pool.QueryRow(bounded, sql, r.cfg.Name, age).Scan(&n)
			cancel()
			if err != nil {
				return all, err
			}
		}
		return all, nil
	}
	ids, err := forget(purgeIDsSQL, r.cfg.Retention)
	bodies, err2 := forget(purgeBodiesSQL, r.cfg.BodyWindow)
	if ids+bodies > 0 && r.cfg.Hooks.Purged != nil {
		r.cfg.Hooks.Purged(ids, bodies)
	}
	return errors.Join(err, err2)
}

// Reconcile adds events that the provider has but that never reached the endpoint, because the
// sender gave up or had disabled the endpoint.
type Reconcile struct {
	// List calls each for every event since a time, for example from a list in the provider's API.
	// It may list them in any order and list older events too. It must return an error of each.
	// Required.
	//
	// Of an Event, ID must be the webhook's id and Body what a handler understands; both are
	// required. Type, Header and Time are taken as they are. Provider is filled in.
	//
	// The zero time means that there was no reconciliation before. If the endpoint has received for
	// longer than ids are remembered, List must then not return older events than that. Otherwise
	// the time is never longer ago than Config.Retention.
	List func(ctx context.Context, since time.Time, each func(*Event) error) error
	// Every is the time from the beginning of one reconciliation to the beginning of the next, in
	// whichever process, at least 1 s. Defaults to 15 min.
	Every time.Duration
	// Overlap is how far before the beginning of the last complete reconciliation the next one
	// looks, for events that a provider lists late. Defaults to 1 hour.
	Overlap time.Duration
}

// dueSQL returns when the next reconciliation is due, and from which time it lists. In: endpoint,
// every, overlap. One row: seconds; the time, null for none; the time now. endedSQL records a
// complete one by the time it began. In: endpoint, time.
const (
	dueSQL = `
select coalesce(extract(epoch from max(reconciled_at) + $2::interval - clock_timestamp()), 0)::float8, max(reconciled_at) - $3::interval, clock_timestamp()
  from onlyonce.webhook_endpoints where endpoint = $1`
	endedSQL = `
insert into onlyonce.webhook_endpoints (endpoint, reconciled_at) values ($1, $2)
on conflict (endpoint) do update set reconciled_at = greatest(webhook_endpoints.reconciled_at, excluded.reconciled_at)`
)

const reconcileLease = time.Minute

// reconcile runs a reconciliation if one is due and no other process runs one. It returns when to
// check again.
func (r *Endpoint) reconcile(ctx context.Context) (wait time.Duration, err error) {
	wait = min(r.cfg.Reconcile.Every, reconcileLease)
	var seconds float64
	var since *time.Time
	var began time.Time
	due := func() error {
		return r.pool.QueryRow(ctx, dueSQL, r.cfg.Name, r.cfg.Reconcile.Every, r.cfg.Reconcile.Overlap).Scan(&seconds, &since, &began)
	}
	if err := due(); err != nil {
		return wait, err
	}
	if seconds > 0 {
		return min(wait, time.Duration(seconds*float64(time.Second))), nil
	}
	l, err := lease.Acquire(ctx, r.pool, "webhook/"+r.cfg.Name+"/reconcile", reconcileLease)
	if l == nil || err != nil {
		return wait, err
	}
	defer func() {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.Deadline)
		defer cancel()
		_ = l.Release(bounded, r.pool) // if that fails, the lease expires
	}()
	if err := due(); err != nil || seconds > 0 { // another process has just finished one
		return wait, err
	}
	listing, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	renewing := make(chan struct{})
	go func() {
		defer close(renewing)
		r.hold(listing, l, stop)
	}()
	listed, missed := 0, 0
	from := time.Time{}
	if since != nil {
		from = *since
		if known := began.Add(-r.cfg.Retention); from.Before(known) { // older ids are forgotten: these events would be accepted again
			r.cfg.Logger.Warn("onlyonce: the last reconciliation of webhooks is longer ago than ids are remembered: what is older is not listed", "endpoint", r.cfg.Name, "since", from, "listed_since", known)
			from = known
		}
	}
	err = r.cfg.Reconcile.List(listing, from, func(e *Event) error {
		listed++
		fresh, err := r.bring(listing, e)
		if fresh {
			missed++
		}
		return err
	})
	if cause := context.Cause(listing); err == nil && cause != nil {
		err = cause
	}
	stop(nil)
	<-renewing
	if err == nil {
		_, err = r.pool.Exec(context.WithoutCancel(ctx), endedSQL, r.cfg.Name, began)
	}
	if r.cfg.Hooks.Reconciled != nil {
		r.cfg.Hooks.Reconciled(listed, missed, err)
	}
	return wait, err
}

// hold renews the lease until ctx ends. If another process takes the lease, it ends ctx. Two at
// once would only do unnecessary work.
func (r *Endpoint) hold(ctx context.Context, l *lease.Lease, stop context.CancelCauseFunc) {
	tick := time.NewTicker(reconcileLease / 3)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			bounded, cancel := context.WithTimeout(ctx, r.cfg.Deadline)
			ours, err := l.Renew(bounded, r.pool, reconcileLease)
			cancel()
			if err == nil && !ours {
				stop(errors.New("webhook: somebody else has taken the reconciliation over"))
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// bring claims a listed event in the same way as a delivered one.
func (r *Endpoint) bring(ctx context.Context, e *Event) (fresh bool, err error) {
	if e == nil || !validID(e.ID) {
		return false, errors.New("webhook: Reconcile.List: an event's ID must be 1 to 255 visible ASCII characters")
	}
	if e.Body == nil || len(e.Body) > r.cfg.verifier.maxBody {
		return false, fmt.Errorf("webhook: Reconcile.List: an event's Body must be set, and not longer than %d bytes", r.cfg.verifier.maxBody)
	}
	start := time.Now()
	mine := *e
	mine.Provider, mine.IDSigned = r.cfg.verifier.scheme.Name, r.cfg.verifier.scheme.IDSigned
	i, err := r.item(&mine, true)
	if err != nil {
		return false, err
	}
	bounded, cancel := context.WithTimeout(ctx, r.cfg.Deadline)
	defer cancel()
	outcome, err := r.accept(bounded, i)
	if err != nil {
		return false, err
	}
	if outcome == Divergent {
		outcome = Duplicate // the API renders the body anew; there is no second sender
	}
	r.received(&mine, outcome, true, start)
	return outcome == Accepted, nil
}
