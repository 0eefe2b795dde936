package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/gauges"
	"github.com/onlyonce/onlyonce/internal/metrics"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/internal/program"
)

// exporterAddress is where the exporter answers unless -listen says so: on this machine only.
const exporterAddress = "127.0.0.1:9465"

func exporterCommand() command {
	return command{
		name:    "exporter",
		args:    "[-postgres URL]... [-listen ADDR] [-interval D] [-timeout D]",
		summary: "serve the state of databases to Prometheus until stopped",
		help: `
Serves http://ADDR/metrics, until SIGTERM or SIGINT: lag, partitions by state with the reasons of
halts, what is parked, calls to be sent and how old the oldest is, how long unanswered calls may
still be repeated under their keys, the rings' segments, HTTP requests that wait for an operator,
and the oldest open transaction. Each is explained in docs/metrics.md.

-postgres may be given several times, for several databases; the label "database" is the database's
name, with host and port if two have the same. A standby will do, but it sees its own open
transactions and not the primary's. The login needs onlyonce_viewer (docs/roles.sql), and
pg_read_all_stats to see how old other logins' transactions are.

A scrape queries each database once, in one snapshot and for at most -timeout; a scrape within
-interval of the last one gets the same values. If a database does not answer, onlyonce_database_up
is 0, and after three intervals its other values are left out. One exporter for each database is
enough: with two, alerts fire twice, and sums in dashboards count twice.

Example:
  onlyonce exporter -postgres postgres://monitor@db/shop -listen 127.0.0.1:9465`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			var urls []string
			fs.Func(
				"postgres",
				"a database, as a `URL`; may be repeated (default: $"+program.EnvPostgres+")",
				func(s string) error {
					urls = append(urls, s)
					return nil
				},
			)
			listen := fs.String("listen", exporterAddress, "serve /metrics at `ADDR`")
			interval := fs.Duration("interval", gauges.Interval, "ask a database at most once in `D`")
			timeout := fs.Duration("timeout", gauges.Timeout, "wait for a database for at most `D`")
			return func(ctx context.Context, a *app) error {
				if *interval <= 0 || *timeout <= 0 {
					return usagef("-interval and -timeout must be positive")
				}
				if len(urls) == 0 {
					urls = []string{""} // a.pool takes the environment's
				}
				return a.exporter(ctx, urls, *listen, *interval, *timeout)
			}
		},
	}
}

func (a *app) exporter(ctx context.Context, urls []string, address string, interval, timeout time.Duration) error {
	log := slog.New(slog.NewTextHandler(a.stderr, nil))
	e := &exporter{ctx: ctx, log: log}
	defer e.close()
	for _, url := range urls {
		pool, err := a.pool(ctx, url, "onlyonce exporter")
		if err != nil {
			return err
		}
		e.databases = append(e.databases, &observed{
			pool,
			&gauges.Rounds{DB: pool, Interval: interval, Timeout: timeout, CountLimit: a.countLimit},
		})
	}
	if err := e.name(); err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics.Handler(e.samples))
	stop, err := program.Listen("-listen", address, "/metrics", mux, log)
	if err != nil {
		return err
	}
	defer stop()
	<-ctx.Done()
	return nil
}

// exporter asks databases when it is scraped.
type exporter struct {
	ctx       context.Context //nolint:containedctx // of the program: a round outlives the scrape that began it
	log       *slog.Logger
	databases []*observed
}

// observed is one database, and what it answered last.
type observed struct {
	pool   *pgxpool.Pool
	rounds *gauges.Rounds
}

// name names the databases: by host and port too if two have one name.
func (e *exporter) name() error {
	named := map[string]int{}
	for _, d := range e.databases {
		d.rounds.Database = primary.Name(d.pool.Config().ConnConfig)
		named[d.rounds.Database]++
	}
	seen := map[string]bool{}
	for _, d := range e.databases {
		c := d.pool.Config().ConnConfig
		name := d.rounds.Database
		if named[name] > 1 {
			name = program.HostPort(c.Host, c.Port) + "/" + name
		}
		if seen[name] {
			return fmt.Errorf("-postgres: %s is given twice", name)
		}
		seen[name] = true
		d.rounds.Database = name
	}
	return nil
}

func (e *exporter) close() {
	for _, d := range e.databases {
		d.pool.Close()
	}
}

// samples asks each database, unless its values are new, and returns all values.
func (e *exporter) samples() (all []metrics.Sample) {
	answers := make([][]metrics.Sample, len(e.databases))
	var wg sync.WaitGroup
	for i, d := range e.databases {
		wg.Go(func() {
			if err := d.rounds.AskIfDue(e.ctx); err != nil && e.ctx.Err() == nil {
				e.log.Warn("onlyonce: a database did not answer the exporter",
					"database", d.rounds.Database, "error", err)
			}
			answers[i] = d.rounds.Samples()
		})
	}
	wg.Wait()
	for _, s := range answers {
		all = append(all, s...)
	}
	return all
}
