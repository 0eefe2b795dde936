package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/rig/workerdb"
	"github.com/onlyonce/onlyonce/test/callcheck"
	"github.com/onlyonce/onlyonce/test/devenv"
	"github.com/onlyonce/onlyonce/test/scenario"
)

// worker plays one history at a time, on a server of its own unless one is given: a rotator waits
// for all transactions of its server, and what the histories of other workers leave open must not
// be among them.
//
// Its databases' own pools are for the rig and for all processes but the one under test, so their
// sessions stay from one history to the next: most of what a history costs the server is new
// sessions.
type worker struct {
	given  string
	stop   func() error
	server *workerdb.Server // nil until the worker has played something
	dbs    map[string]*workerdb.DB
}

func (w *worker) start(ctx context.Context) error {
	address := w.given
	if address == "" {
		pg, err := devenv.StartPostgres(ctx, devenv.Options{Own: true, PostgresSettings: map[string]string{
			// The histories test interleavings, and no server dies.
			"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "100", "shared_buffers": "64MB",
			// Statements are planned once a session, and what runs beside the histories does not.
			"plan_cache_mode": "force_generic_plan", "jit": "off", "autovacuum": "off", "max_parallel_workers_per_gather": "0"}})
		if err != nil {
			return err
		}
		address = pg.URL
		w.stop = pg.Stop
	}
	var err error
	w.server, err = workerdb.NewServer(ctx, address, "adversary")
	w.dbs = map[string]*workerdb.DB{}
	return err
}

const (
	// restoreLimit bounds what lies between two histories: sessions end and, at times, a database
	// is made.
	restoreLimit = 5 * time.Minute
	// returnLimit is how long a process that was stopped may keep connections.
	returnLimit = time.Second
)

// database returns one of the worker's databases as it is in the beginning of each history.
func (w *worker) database(ctx context.Context, name string) (*workerdb.DB, error) {
	ctx, cancel := context.WithTimeout(ctx, restoreLimit)
	defer cancel()
	if w.server == nil {
		if err := w.start(ctx); err != nil {
			return nil, err
		}
	}
	if d := w.dbs[name]; d != nil && returned(d.Pool) {
		return d, d.Restore(ctx)
	}
	// A process that does not come to its end has the old one, if there is one.
	d, err := w.server.Take(ctx, func(ctx context.Context, pool *pgxpool.Pool) error {
		_, err := pool.Exec(ctx, scenario.EffectsSQL+"; "+callcheck.TablesSQL)
		return err
	})
	if err == nil {
		w.dbs[name] = d
	}
	return d, err
}

// returned reports whether all of a pool's connections are given back.
func returned(pool *pgxpool.Pool) bool {
	for began := time.Now(); pool.Stat().AcquiredConns() > 0; time.Sleep(2 * time.Millisecond) {
		if time.Since(began) > returnLimit {
			return false
		}
	}
	return true
}

// close drops the databases, and ends the server if it was started.
func (w *worker) close(ctx context.Context) (err error) {
	for _, d := range w.dbs {
		if returned(d.Pool) {
			err = errors.Join(err, d.Drop(ctx))
		}
	}
	if w.server != nil {
		err = errors.Join(err, w.server.Close())
	}
	if w.stop != nil {
		err = errors.Join(err, w.stop())
	}
	return err
}
