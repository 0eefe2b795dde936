package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/program"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/outbox"
)

// app is the program without its process.
type app struct {
	out, errs io.Writer
	env       func(string) string
}

// complain writes one line to standard error. If that fails, there is no other place to report it.
func (a *app) complain(format string, args ...any) {
	_, _ = fmt.Fprintln(a.errs, show.Printable(show.OneLine(fmt.Sprintf(format, args...))))
}

// options are what the command line says.
type options struct {
	postgres, config string
	at               addresses
	check            bool
}

// relay runs a relay until ctx ends.
func (a *app) relay(ctx context.Context, o options) error {
	log := slog.New(slog.NewTextHandler(a.errs, nil))
	c, err := a.configuration(o.config, log)
	if err != nil {
		return err
	}
	defer c.close()
	if o.check {
		if err := a.faultless(c); err != nil {
			return err
		}
		_, err := fmt.Fprintf(a.out, "%s is good: %d sinks\n", o.config, len(c.sinks))
		return err
	}
	h := &relayHealth{sinks: map[string]int{}}
	for _, s := range c.sinks {
		h.sinks[s.Name()] = 0
	}
	c.relay.Logger = log
	c.relay.Hooks.Lease = h.lease
	measured := measureRelay(&c.relay.Hooks, c.relay.Sinks)
	databases := program.Connector{Env: a.env, Timeout: program.ConnectTimeout}
	pool, err := databases.Pool(ctx, o.postgres, "onlyonce relay")
	if err != nil {
		return errors.Join(a.faultless(c), err)
	}
	defer pool.Close()
	h.database = newPings(pool.Ping)
	relay, err := a.made(pool, c)
	if err != nil {
		return err
	}
	if err := a.fits(ctx, databases, o.postgres); err != nil {
		if ctx.Err() != nil {
			return nil // stopped before it began
		}
		return err
	}
	stop, err := o.at.serve(h, measured, log)
	defer stop()
	if err != nil {
		return err
	}
	stopping := context.AfterFunc(ctx, func() { h.set("stopping") })
	defer stopping()
	h.set("")
	return relay.Run(ctx)
}

// configuration reads the file.
func (a *app) configuration(file string, log *slog.Logger) (*configuration, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("-config: %w", err)
	}
	c := parse(data, a.env, log)
	c.name = file
	return c, nil
}

// fits returns an error if the database does not answer, or its schema does not fit this program.
func (a *app) fits(ctx context.Context, databases program.Connector, address string) error {
	return databases.With(ctx, address, func(db *program.Database) error { return db.Explain(db.Check(ctx)) })
}

// made makes the relay. What this finds are faults of the file.
func (a *app) made(pool *pgxpool.Pool, c *configuration) (*outbox.Relay, error) {
	cfg := c.relay
	if len(c.file.Faults()) > 0 && len(cfg.Sinks) == 0 {
		cfg.Sinks = []outbox.Sink{noSink{}} // the fault "no sinks" would be wrong: there are sinks, with faults
	}
	relay, err := outbox.NewRelay(pool, cfg)
	adopt(&c.file, "", err)
	faults := c.file.Faults()
	for _, f := range faults {
		a.complain("onlyonce-relay: %s: %v", c.name, f)
	}
	if len(faults) > 0 {
		return nil, fmt.Errorf("-config: %s has faults: %d", c.name, len(faults))
	}
	return relay, nil
}

// faultless is made for a relay that is not used.
func (a *app) faultless(c *configuration) error {
	pool, err := pgxpool.New(context.Background(), "host=localhost") // it does not connect
	if err != nil {
		return err
	}
	defer pool.Close()
	_, err = a.made(pool, c)
	return err
}

// noSink is a placeholder for sinks with faults.
type noSink struct{}

func (noSink) Name() string { return "none" }
func (noSink) Limits() outbox.Limits {
	return outbox.Limits{KeyWindow: outbox.Forever, Timeout: time.Second}
}
func (noSink) Send(context.Context, *outbox.Attempt) outbox.Result { return outbox.Result{} }
