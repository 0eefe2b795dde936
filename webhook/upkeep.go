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

// purgeIDsSQL forgets when ids were claimed whose retention has passed; the ids themselves go with their segment of the ring standard_keys. In: endpoint,
// retention. One row: how many. Bounded; by the index webhook_ids_age; rows that another process is at are left to it.
const purgeIDsSQL = `
with old as (
  select ctid as at from onlyonce.webhook_ids where endpoint = $1 and seen_at < clock_timestamp() - $2::interval
   order by seen_at limit 500 for update skip locked),
gone as (delete from onlyonce.webhook_ids w using old where w.ctid = old.at)
select count(*) from old`

// purgeBodiesSQL forgets bodies whose window has passed. In: endpoint, window. One row: how many. Bounded; by the index webhook_bodies_age. The age is
// compared again in the DELETE: a row that a request has renewed meanwhile stays.
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

// Run applies stored events, if the endpoint has a handler in mode Inbox, forgets ids and bodies
// whose retention has passed, rotates the inbox, and reconciles, until ctx ends; then it drains and
// returns nil. It may be called once. Any number of processes may run it, and requests are served
// without it. A process that only receives can leave Handler unset; one that only works needs no
// mux.
//
// It returns an error if the schema does not fit, if the database cannot be reached at the start, if
// the inbox remembers ids for less than Config.Retention (W10), and whatever [consumer.Consumer.Run]
// returns. A role without the right to delete is logged once: another process must forget.
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
	if err := inbox.Holds(asking, r.pool, remembered); err != nil {
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

// purge deletes batch after batch until there is no more.
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

// Reconcile brings what the provider has, and never reached the endpoint: senders give up, and endpoints get disabled.
type Reconcile struct {
	// List calls each for every event since a time: of the provider's API, in any order, with as many others as it likes. The zero time means that
	// there was no reconciliation before: an endpoint that has received for longer than ids are remembered must not bring what is older than that. It is never
	// longer ago than Config.Retention otherwise. Event.ID must be what the webhook has, and Body what a handler understands; both are required, and
	// Type, Header and Time are taken as they are. Provider is filled in. An error of each is to be returned. Required.
	List func(ctx context.Context, since time.Time, each func(*Event) error) error
	// Every is how long after the begin of one the next one begins, whichever process runs it. Default 15 min, at least 1 s.
	Every time.Duration
	// Overlap is how much further back than the begin of the last complete one it looks: for events that a provider lists late. Default 1 hour.
	Overlap time.Duration
}

// dueSQL says when the next reconciliation is due, and since when it is to look. In: endpoint, every, overlap. One row: seconds;
// the time, null for none; the time now.
// endedSQL notes a complete one by when it began. In: endpoint, time.
const (
	dueSQL = `
select coalesce(extract(epoch from max(reconciled_at) + $2::interval - clock_timestamp()), 0)::float8, max(reconciled_at) - $3::interval, clock_timestamp()
  from onlyonce.webhook_endpoints where endpoint = $1`
	endedSQL = `
insert into onlyonce.webhook_endpoints (endpoint, reconciled_at) values ($1, $2)
on conflict (endpoint) do update set reconciled_at = greatest(webhook_endpoints.reconciled_at, excluded.reconciled_at)`
)

const reconcileLease = time.Minute

// reconcile makes a reconciliation if one is due and nobody else is at it. It returns when to look again.
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
		_ = l.Release(bounded, r.pool) // if that fails it ends by itself
	}()
	if err := due(); err != nil || seconds > 0 { // somebody has just made one
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
		if known := began.Add(-r.cfg.Retention); from.Before(known) { // what is older was forgotten, and would be brought again
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

// hold renews the lease until ctx ends, and ends ctx should somebody else have it. Two at once would do no harm but work.
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

// bring feeds a listed event through the same claim as a delivered one.
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
		outcome = Duplicate // rendered anew by the API, not by a second sender
	}
	r.received(&mine, outcome, true, start)
	return outcome == Accepted, nil
}
