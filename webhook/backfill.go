package webhook

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/internal/lease"
	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/webhook/internal/received"
)

// elsewhere reports whether the place of a listed event is in another database, which lists it too.
func (ep *Endpoint) elsewhere(i *incomingEvent) (bool, error) {
	if ep.set == nil {
		return false, nil
	}
	db, err := ep.set.Of(i.item.Place)
	return db.Name != ep.name, err
}

// backfillDueSQL returns when the next backfill is due, and from which time it lists. In:
// endpoint, every, overlap. One row: seconds; the time, null for none; the time now. backfilledSQL
// records a complete one by the time it began. In: endpoint, time.
//
// If the last one is in the future, the clock was ahead when it began. Then the next one is due,
// and begins one interval earlier, because the last one was not earlier than that (T11).
const (
	backfillDueSQL = `
select case when last <= now then extract(epoch from last + $2::interval - now) else 0 end::float8,
       case when last > now then now - $2::interval else last end - $3::interval,
       now
  from (select max(backfilled_at) as last, clock_timestamp() as now
          from onlyonce.webhook_endpoints where endpoint = $1) e`
	backfilledSQL = `
insert into onlyonce.webhook_endpoints (endpoint, backfilled_at) values ($1, $2)
on conflict (endpoint) do update
  set backfilled_at = case
                        when webhook_endpoints.backfilled_at > clock_timestamp() then excluded.backfilled_at
                        else greatest(webhook_endpoints.backfilled_at, excluded.backfilled_at)
                      end`
)

const backfillLease = time.Minute

// backfilling is one backfill of an endpoint.
type backfilling struct {
	*Endpoint
	untilDue float64    // seconds; 0 or less: it is due
	from     *time.Time // the time from which it lists; nil: there was none before
	begun    time.Time  // by the database's clock

	listed, missed, old int // see BackfilledEvent
}

// backfillIfDue runs a backfill if one is due and no other process runs one. It returns when
// to check again (W10).
func (ep *Endpoint) backfillIfDue(ctx context.Context) (wait time.Duration, err error) {
	r := &backfilling{Endpoint: ep}
	wait = min(ep.cfg.Backfill.Every, backfillLease)
	if err := r.readDue(ctx); err != nil {
		return wait, err
	}
	if r.untilDue > 0 {
		return min(wait, time.Duration(r.untilDue*float64(time.Second))), nil
	}
	l, err := lease.Acquire(ctx, ep.pool, names.Backfill(ep.cfg.Name), backfillLease)
	if l == nil || err != nil {
		return wait, err
	}
	defer func() {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), ep.cfg.deadline)
		defer cancel()
		_ = l.Release(bounded, ep.pool) // if that fails, the lease expires
	}()
	if err := r.readDue(ctx); err != nil || r.untilDue > 0 { // another process has just finished one
		return wait, err
	}
	err = r.listUnderLease(ctx, l)
	if err == nil {
		_, err = ep.pool.Exec(context.WithoutCancel(ctx), backfilledSQL, ep.cfg.Name, r.begun)
	}
	if ep.cfg.Hooks.Backfilled != nil {
		ep.cfg.Hooks.Backfilled(BackfilledEvent{Listed: r.listed, Missed: r.missed, Old: r.old, Err: err})
	}
	return wait, err
}

func (r *backfilling) readDue(ctx context.Context) error {
	return r.pool.QueryRow(ctx, backfillDueSQL, r.cfg.Name, r.cfg.Backfill.Every, r.cfg.Backfill.Overlap).Scan(
		&r.untilDue,
		&r.from,
		&r.begun,
	)
}

// listUnderLease lists events and accepts each, while it renews the lease (W10).
func (r *backfilling) listUnderLease(ctx context.Context, l *lease.Lease) error {
	listing, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var renewing sync.WaitGroup
	renewing.Go(func() { r.renewLease(listing, l, stop) })
	var failed error // of an event that is refused each time, and must not keep those after it out
	err := r.cfg.Backfill.List(listing, r.since(), func(e *Event) error {
		r.listed++
		err := r.acceptListed(listing, e)
		if errors.Is(err, ErrHandler) || errors.Is(err, ErrTenant) || errors.Is(err, ErrQuarantineFull) {
			failed = err
			err = nil
		}
		return err
	})
	if cause := context.Cause(listing); err == nil && cause != nil {
		err = cause
	}
	if err == nil {
		err = failed // the next one lists it again
	}
	stop(nil)
	renewing.Wait()
	if r.old > 0 {
		r.cfg.Logger.Warn("onlyonce: a backfill of webhooks listed events that are older than ids are "+
			"remembered; they are passed over",
			"endpoint", r.cfg.Name, "events", r.old, "remembered_since", r.remembered())
	}
	return err
}

// remembered is since when the inbox remembers ids: older events would be accepted again.
func (r *backfilling) remembered() time.Time { return r.begun.Add(-r.cfg.Retention) }

// since returns the time from which events are listed. It is never before the ids that the inbox
// remembers.
func (r *backfilling) since() time.Time {
	remembered := r.remembered()
	if r.from == nil {
		return remembered
	}
	if r.from.Before(remembered) {
		r.cfg.Logger.Warn("onlyonce: the last backfill of webhooks is longer ago than ids are remembered; "+
			"events in between are not listed",
			"endpoint", r.cfg.Name, "since", *r.from, "listed_since", remembered)
		return remembered
	}
	return *r.from
}

// renewLease renews the lease until ctx ends. If another process takes the lease, it ends ctx. Two
// at once would only do unnecessary work.
func (r *backfilling) renewLease(ctx context.Context, l *lease.Lease, stop context.CancelCauseFunc) {
	tick := time.NewTicker(backfillLease / 3)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			bounded, cancel := context.WithTimeout(ctx, r.cfg.deadline)
			ours, err := l.Renew(bounded, r.pool, backfillLease)
			cancel()
			if err == nil && !ours {
				stop(errors.New("webhook: another process has taken the backfill over"))
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// acceptListed claims a listed event in the same way as a delivered one, unless its id may be
// forgotten.
func (r *backfilling) acceptListed(ctx context.Context, e *Event) error {
	if e == nil || !received.ValidID(e.ID) {
		return errors.New("webhook: Backfill.List: an event's ID must be 1 to 255 visible ASCII characters")
	}
	if e.Body == nil || len(e.Body) > r.cfg.verifier.maxBody {
		return fmt.Errorf("webhook: Backfill.List: an event's Body must be set, and not longer than %d bytes",
			r.cfg.verifier.maxBody)
	}
	if e.Time.IsZero() {
		return errors.New("webhook: Backfill.List: an event's Time must be set to when it happened: whether " +
			"its id may be forgotten depends on it")
	}
	if e.Time.Before(r.remembered()) {
		r.old++
		return nil
	}
	listed := *e
	listed.Provider = r.cfg.verifier.scheme.Name
	listed.IDSigned = r.cfg.verifier.scheme.IDSigned
	incoming, err := r.newIncomingEvent(ctx, &listed, true)
	if err != nil {
		return err
	}
	if elsewhere, err := r.elsewhere(incoming); elsewhere || err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, r.cfg.deadline)
	defer cancel()
	outcome, err := r.accept(bounded, incoming)
	if err != nil {
		return err
	}
	if outcome == Accepted { // Divergent is a duplicate: the API renders the body anew
		r.missed++
	}
	return nil
}
