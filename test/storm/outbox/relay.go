package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
	"github.com/onlyonce/onlyonce/test/fleet"
	"github.com/onlyonce/onlyonce/test/storm/rig"
)

// The sinks. All lead to one remote.
const (
	sinkMain   = "main"   // calls pass a parked one of their ordering key
	sinkStrict = "strict" // calls wait for a parked one of their ordering key
	sinkShort  = "short"  // the remote forgets keys after a few seconds
)

const (
	// leaseTTL is short, because it is waited for after every kill, and long enough for two cores.
	leaseTTL = 3 * time.Second
	// longWindow is how long it remembers the others'.
	longWindow = 24 * time.Hour
	// shortWindow is how long the remote remembers a key of sinkShort.
	shortWindow = 5 * time.Second
	// callTimeout bounds one attempt.
	callTimeout = 500 * time.Millisecond
)

// relayConfig is all that a relay process needs to know.
type relayConfig struct {
	Postgres string
	Remote   string
}

// relayMain is main in a relay process.
func relayMain() int {
	var cfg relayConfig
	return rig.Serve(&cfg, func(ctx context.Context, c *fleet.Child) error { return serve(ctx, c, cfg) })
}

// serve runs two relays: in one, calls pass a parked one of their key; in the other they wait.
func serve(ctx context.Context, c *fleet.Child, cfg relayConfig) error {
	pool, err := rig.Pool(ctx, cfg.Postgres, 20, nil)
	if err != nil {
		return err
	}
	defer pool.Close()
	var relays []*outbox.Relay
	for _, names := range [][]string{{sinkMain, sinkShort}, {sinkStrict}} {
		var sinks []outbox.Sink
		var rates []outbox.Rate
		for _, name := range names {
			s, err := sink(name, cfg.Remote)
			if err != nil {
				return err
			}
			defer s.Close()
			sinks = append(sinks, &watched{s, c})
			rates = append(rates, outbox.Rate{Sink: name, EachTenant: true, InFlight: 4})
		}
		relay, err := outbox.NewRelay(pool, outbox.RelayConfig{
			Sinks:        sinks,
			PollInterval: 50 * time.Millisecond,
			LeaseTTL:     leaseTTL,
			Backoff:      dedupe.Backoff{Min: 20 * time.Millisecond, Max: 500 * time.Millisecond},
			DrainTimeout: 3 * time.Second,
			PassOn:       names[0] != sinkStrict,
			Rates:        rates,
			Hooks:        hooks(c),
		})
		if err != nil {
			return err
		}
		relays = append(relays, relay)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	errs := make([]error, len(relays))
	var both sync.WaitGroup
	for i, r := range relays {
		both.Go(func() {
			defer stop() // the other stops in order
			errs[i] = r.Run(ctx)
		})
	}
	both.Wait()
	return errors.Join(errs...)
}

func sink(name, address string) (*httpsink.Sink, error) {
	window := longWindow
	if name == sinkShort {
		window = shortWindow
	}
	return httpsink.New(httpsink.Config{
		Name: name, BaseURL: "http://" + address + "/" + name, KeyWindow: window, Timeout: callTimeout, AllowPrivate: true,
		// Calls that always fail come one after another although the host is up.
		Breaker:   httpsink.Breaker{OpenFor: time.Second},
		Transport: &http.Transport{MaxIdleConnsPerHost: 16},
	})
}

func hooks(c *fleet.Child) outbox.Hooks {
	return outbox.Hooks{
		AttemptStart: func(ctx context.Context, a outbox.AttemptEvent) context.Context {
			c.Trap("attempt-start", strconv.FormatInt(a.Row, 10))
			return ctx
		},
		Settled: func(s outbox.SettledEvent) { c.Trap("settled", strconv.FormatInt(s.Row, 10)) },
		Lease: func(l outbox.LeaseEvent) {
			if l.Err != nil {
				c.Tell(fleet.Event{Kind: fleet.Lease, Text: fmt.Sprintf("lane %d of %s: %v", l.Lane, l.Sink, l.Err)})
			}
		},
		TransactionFailed: func(f outbox.TransactionFailedEvent) { c.Tell(fleet.Event{Kind: fleet.Trouble, Text: f.Err.Error()}) },
	}
}

// watched reports to the parent when a call begins and when it has returned, so that kills can be
// aimed.
type watched struct {
	*httpsink.Sink
	c *fleet.Child
}

// Send makes the call.
func (w *watched) Send(ctx context.Context, a *outbox.Attempt) outbox.Result {
	w.c.Trap("send", strconv.FormatInt(a.ID, 10))
	begun := time.Now()
	w.c.Tell(fleet.Event{Kind: fleet.Begin, Partition: int32(a.ID), Offset: a.ID})
	r := w.Sink.Send(ctx, a)
	handled := 0
	if r.Outcome == outbox.Delivered {
		handled = 1
	}
	w.c.Tell(fleet.Event{Kind: fleet.Done, Partition: int32(a.ID), Handled: handled, Micros: time.Since(begun).Microseconds()})
	return r
}
