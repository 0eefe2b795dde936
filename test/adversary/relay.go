package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
	"github.com/onlyonce/onlyonce/test/callcheck"
)

// relayScenes: a relay of one sink, without a rate and with one of each tenant.
func relayScenes() []scene {
	return []scene{
		{name: "relay/calls", make: func() stage { return &relaying{} }},
		{name: "relay/tenants", make: func() stage {
			return &relaying{rates: []outbox.Rate{{Sink: sink, EachTenant: true, PerSecond: 100, InFlight: 1}}}
		}},
	}
}

const sink = "main"

// relaying is a relay that sends calls to a remote, with and without an ordering key. The remote
// fails one of them at first.
type relaying struct {
	remote *callcheck.Remote
	rates  []outbox.Rate
	n      int
}

// setUp implements stage.
func (x *relaying) setUp(r *rig) (err error) {
	x.remote, err = callcheck.NewRemote(func(b callcheck.Body, n int) string {
		if b.ID == "first-1" && n == 1 {
			return "503"
		}
		return ""
	})
	if err != nil {
		return err
	}
	r.atEnd(func() { _ = x.remote.Close() })
	return x.write(r, "first", "", "a1", "a1", "a2")
}

// write commits calls with these ordering keys.
func (x *relaying) write(r *rig, id string, keys ...string) error {
	tx, err := r.db.Pool.Begin(r.ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(r.ctx) }()
	var planned []callcheck.Planned
	for _, k := range keys {
		planned = append(planned, callcheck.Planned{Body: callcheck.Body{Sink: sink, Key: k}})
	}
	if err := callcheck.Write(r.ctx, tx, id, planned, false); err != nil {
		return err
	}
	return tx.Commit(r.ctx)
}

// more implements stage.
func (x *relaying) more(r *rig) error {
	x.n++
	return x.write(r, fmt.Sprintf("more-%d", x.n), "a1", "", "a2")
}

// start implements stage.
func (x *relaying) start(r *rig, pool *pgxpool.Pool) (func() error, error) {
	return r.process(func(ctx context.Context) error {
		s, err := httpsink.New(httpsink.Config{
			Name:         sink,
			BaseURL:      "http://" + x.remote.Address + "/" + sink,
			KeyWindow:    24 * time.Hour,
			Timeout:      r.bound,
			AllowPrivate: true,
			Transport:    &http.Transport{},
		})
		if err != nil {
			return err
		}
		defer s.Close()
		relay, err := outbox.NewRelay(pool, outbox.RelayConfig{
			Sinks:        []outbox.Sink{s},
			PollInterval: 50 * time.Millisecond,
			LeaseTTL:     max(r.bound, time.Second),
			Backoff:      dedupe.Backoff{Min: 10 * time.Millisecond, Max: 50 * time.Millisecond},
			DrainTimeout: r.bound,
			Rates:        x.rates,
			Logger:       r.logger(),
		})
		if err != nil {
			return err
		}
		return relay.Run(ctx)
	}), nil
}

// done implements stage.
func (x *relaying) done(r *rig) (bool, error) {
	var n int
	err := r.db.Pool.QueryRow(r.ctx, callcheck.UnsettledSQL).Scan(&n)
	return n == 0, err
}

// check implements stage.
func (x *relaying) check(r *rig) ([]string, error) {
	r.wire.Close() // what the network has cut off is no connection that a relay has left
	f, err := callcheck.Gather(r.ctx, r.db.Pool, x.remote, 5*r.bound)
	if err != nil {
		return nil, err
	}
	return f.Judge(), nil
}
