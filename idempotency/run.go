package idempotency

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/internal/preflight"
	"github.com/onlyonce/onlyonce/internal/presence"
	"github.com/onlyonce/onlyonce/internal/process"
)

// lookSQL checks for a batch of records whether the calls and operations of their requests are
// settled, by the index http_records_look (H31). purgeSQL deletes a batch of expired records.
// abandonSQL handles requests in lease mode whose clients did not come back (H18). They use the
// index http_records_expired, lock only the rows that they delete, and skip locked rows.
const (
	lookSQL    = `select onlyonce.http_look($1)`
	purgeSQL   = `select onlyonce.http_purge($1)`
	abandonSQL = `select deleted, aside, abandoned from onlyonce.http_abandon($1)`
)

// purgedAtOnce is how many records one statement deletes at most.
const purgedAtOnce = 1000

// portions are those of the statements that look at records and delete them, and of the one that
// deletes operations.
type portions struct {
	looked, purged, abandoned, operations *pace.Portion
}

func newPortions(most int) portions {
	return portions{
		looked:     pace.NewPortion(most),
		purged:     pace.NewPortion(most),
		abandoned:  pace.NewPortion(most),
		operations: pace.NewPortion(most),
	}
}

// Run checks the database and then purges expired records until ctx ends; then it returns nil. Any
// number of processes may run it, and one must: otherwise records do not expire (T11), and a key is
// never free again. Run returns an error if the schema or the role's rights do not fit, or if
// earlier processes had another secret under an id of Config.FingerprintKeys (H30).
//
// A layer of several databases does this in each. It ends if one of them fails (H20).
//
// It has logged the error that it returns: often it runs in a goroutine whose error nobody reads.
func (l *Layer) Run(ctx context.Context) error {
	if l.shards != nil {
		return process.Together(ctx, l.shards, func(ctx context.Context, one *Layer) error { return one.Run(ctx) })
	}
	err := l.run(ctx)
	if err != nil {
		l.cfg.Logger.Error("onlyonce: this process does not serve requests by their Idempotency-Key as it should",
			"error", err)
	}
	return err
}

// check checks the database before the first record is purged.
func (l *Layer) check(ctx context.Context) error {
	ctx, cancel := process.AtStart(ctx)
	defer cancel()
	roles := []preflight.Role{preflight.HTTP}
	if l.set != nil {
		roles = append(roles, preflight.Places)
	}
	if l.cfg.Cache != nil {
		roles = append(roles, preflight.Cache)
	}
	warnings, err := preflight.Check(ctx, l.pool.Raw(), roles...)
	for _, w := range warnings {
		l.cfg.Logger.Warn("onlyonce: " + w)
	}
	if err != nil {
		return fmt.Errorf("idempotency: %w", err)
	}
	return l.checkKeys(ctx)
}

// run is Run of one database.
func (l *Layer) run(ctx context.Context) error {
	if err := l.check(ctx); err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // ctx ended before the check
		}
		return err
	}
	defer l.begun.Begin(ctx)()
	reporting, stop := context.WithCancel(ctx)
	var reported sync.WaitGroup
	defer reported.Wait()
	defer stop()
	reported.Go(func() { l.reporter().Run(reporting) })
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		more, err := l.purge(ctx)
		if err != nil && ctx.Err() == nil {
			l.reportError(err)
		}
		wait := l.cfg.PurgeInterval
		if more {
			wait = wait / 100 // a pause between batches, because requests run at the same time
		}
		timer.Reset(wait)
	}
}

// reporter reports the layer (S3). It says only that the layer runs: each request sees a fault of
// the database, and a wrong secret ends Run.
func (l *Layer) reporter() *presence.Reporter {
	return &presence.Reporter{
		Pool:   l.pool,
		Part:   presence.Layer,
		Scopes: []string{""},
		Faults: func(string) []presence.Fault { return nil },
		Logger: l.cfg.Logger,
	}
}

// Ready is for a readiness probe. It returns nil while Run works, because it has checked the schema
// and the role's rights. Before that, and from the moment that Run's context ends, it returns an
// error. It makes no query: if the database goes away later, the layer answers requests with 503.
func (l *Layer) Ready() error {
	for name, one := range l.shards {
		if err := one.Ready(); err != nil {
			return fmt.Errorf("database %q: %w", name, err)
		}
	}
	if l.shards != nil {
		return nil
	}
	if err := l.begun.Err(); err != nil {
		return fmt.Errorf("idempotency: not ready: %w", err)
	}
	return nil
}

// purge deletes a batch, and reports whether there may be more. While records are still to be
// looked at, it deletes none: it would pass over the same ones each time. A look keeps a record
// from its expiry, or finds that it may expire (H31, T13).
func (l *Layer) purge(ctx context.Context) (more bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.cfg.Timeouts.Statement)
	defer cancel()
	if err := l.watched.Look(ctx); err != nil {
		return false, fmt.Errorf("idempotency: %w", err)
	}
	more, err = l.portions.looked.Run(func(most int) (looked int, err error) {
		err = l.pool.QueryRow(ctx, lookSQL, most).Scan(&looked)
		return looked, err
	})
	if err != nil {
		return false, fmt.Errorf("idempotency: checking whether calls and operations of requests are settled: %w", err)
	}
	if more {
		return true, nil
	}
	var purged, deleted, aside, abandoned int
	more, err = l.portions.purged.Run(func(most int) (int, error) {
		err := l.pool.QueryRow(ctx, purgeSQL, most).Scan(&purged)
		return purged, err
	})
	if err != nil {
		return false, fmt.Errorf("idempotency: purging: %w", err)
	}
	_, err = l.portions.abandoned.Run(func(most int) (int, error) {
		err := l.pool.QueryRow(ctx, abandonSQL, most).Scan(&deleted, &aside, &abandoned)
		return deleted + aside + abandoned, err
	})
	if err != nil {
		return false, fmt.Errorf("idempotency: looking for abandoned requests: %w", err)
	}
	if aside > 0 {
		l.cfg.Logger.Error("onlyonce: requests have a step whose outcome is unknown; decide on each: "+
			"`onlyonce request list` shows them", "requests", aside)
	}
	if abandoned > 0 {
		l.cfg.Logger.Error("onlyonce: requests made external calls and were not completed, and their "+
			"clients did not retry: `onlyonce request list` shows them", "requests", abandoned)
	}
	if purged+deleted > 0 && l.cfg.Hooks.Purged != nil {
		l.cfg.Hooks.Purged(purged + deleted)
	}
	return more, nil
}
