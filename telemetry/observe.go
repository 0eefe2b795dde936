package telemetry

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/onlyonce/onlyonce/internal/gauges"
	"github.com/onlyonce/onlyonce/internal/lease"
	"github.com/onlyonce/onlyonce/internal/metrics"
	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/internal/primary"
)

// maxInterval is the longest Config.Interval: the lease lasts for four, and at most an hour.
const maxInterval = lease.Longest / 4

// Observe records the metrics of the database until ctx ends, for example lag, parked rows and the
// oldest call: those of docs/metrics.md that onlyonce exporter serves too. Run it in each of your
// processes, or in one, instead of the exporter.
//
// One process of all queries the database, by a lease; the others do not report these metrics, so
// sums do not count them twice. It runs one round of queries in each Config.Interval, on one
// connection of the pool and for at most 8 s (or four fifths of the interval, if that is less);
// then it cancels the round, also on the server. Exporting does not wait for a round. If the
// database does not answer, each process reports onlyonce.database.up as 0, and after three
// intervals leaves out the other values. If the querying process dies, another one takes over
// within five intervals.
//
// The pool's login must be able to read all of the engine's tables and to take leases, for example
// as a member of onlyonce_viewer and onlyonce_app (docs/roles.sql). Observe does not work on a
// standby, which cannot write a lease: run onlyonce exporter there.
//
// It returns nil when ctx has ended, or an error at once if t or an instrument is not valid.
func Observe(ctx context.Context, pool *pgxpool.Pool, t Config) error {
	if t.Interval < 0 || t.Interval > maxInterval {
		return fmt.Errorf("telemetry: Config.Interval: is %v: must be positive, and at most %v",
			t.Interval, maxInterval)
	}
	t.Interval = cmp.Or(t.Interval, gauges.Interval)
	o := &observer{pool: pool, interval: t.Interval, log: cmp.Or(t.Logger, slog.Default()), rounds: &gauges.Rounds{
		Database: primary.Name(pool.Config().ConnConfig),
		DB:       pool,
		Interval: t.Interval,
		Timeout:  min(gauges.Timeout, t.Interval/5*4),
	}}
	registered, err := o.register(newRecorder(t))
	if err != nil {
		return err
	}
	o.run(ctx)
	err = registered.Unregister()
	o.release(ctx) // now, so that no other process reports while this one does
	return err
}

// observer asks one database while it has the lease.
type observer struct {
	pool     *pgxpool.Pool
	interval time.Duration
	log      *slog.Logger
	rounds   *gauges.Rounds
	lease    *lease.Lease // nil: another process has it, or none. The loop's alone.
}

// ttl is how long the lease lasts. Values are left out after three intervals, and a round takes
// less than one. So the values of a process that lost its lease are gone when the next one may
// begin.
func (o *observer) ttl() time.Duration { return (gauges.KeptIntervals + 1) * o.interval }

func (o *observer) run(ctx context.Context) {
	tick := time.NewTicker(o.interval)
	defer tick.Stop()
	for {
		o.round(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (o *observer) round(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, o.rounds.Timeout)
	defer cancel()
	began := time.Now()
	owner, err := o.own(bounded)
	switch {
	case err != nil:
		o.rounds.Fail(began)
	case owner:
		err = o.rounds.Ask(bounded)
	default:
		o.rounds.Leave()
	}
	if err != nil && ctx.Err() == nil {
		o.log.Warn("onlyonce: the database did not answer telemetry.Observe",
			"database", o.rounds.Database, "error", err)
	}
}

// own takes or renews the lease, and reports whether this process has it.
func (o *observer) own(ctx context.Context) (bool, error) {
	var err error
	if o.lease == nil {
		o.lease, err = lease.Acquire(ctx, primary.Of(o.pool, nil), names.Observer(), o.ttl())
		return o.lease != nil, err
	}
	ours, err := o.lease.Renew(ctx, primary.Of(o.pool, nil), o.ttl())
	if err == nil && !ours {
		o.lease = nil
	}
	return o.lease != nil, err
}

// release gives the lease back, so that another process takes over in its next interval.
func (o *observer) release(ctx context.Context) {
	if o.lease == nil {
		return
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.rounds.Timeout)
	defer cancel()
	if err := o.lease.Release(bounded, o.pool); err != nil {
		o.log.Warn("onlyonce: telemetry.Observe did not give its lease back: another process queries once "+
			"it has run out", "error", err)
	}
}

// register makes an instrument for each metric of the database, and reports the samples of the
// rounds.
func (o *observer) register(r *recorder) (metric.Registration, error) {
	instruments := map[*metrics.Metric]metric.Float64Observable{}
	var all []metric.Observable
	for _, m := range metrics.From(metrics.FromDatabase) {
		var i metric.Float64Observable
		var err error
		if m.Kind == metrics.Counter {
			i, err = r.meter.Float64ObservableCounter(m.Name, metric.WithUnit(m.Unit), metric.WithDescription(m.Help))
		} else {
			i, err = r.meter.Float64ObservableGauge(m.Name, metric.WithUnit(m.Unit), metric.WithDescription(m.Help))
		}
		r.failed(m, err)
		instruments[m] = i
		all = append(all, i)
	}
	if r.err != nil {
		return nil, r.err
	}
	return r.meter.RegisterCallback(func(_ context.Context, to metric.Observer) error {
		for _, s := range o.rounds.Samples() {
			attrs := make([]attribute.KeyValue, len(s.Values))
			for i, name := range s.Metric.Attributes {
				attrs[i] = attribute.String(name, s.Values[i])
			}
			to.ObserveFloat64(instruments[s.Metric], s.Value, metric.WithAttributes(attrs...))
		}
		return nil
	}, all...)
}
