package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/examples/internal/servers"
	"github.com/onlyonce/onlyonce/webhook"
)

// proof is one run: what is sent, what must come of it, and what came.
type proof struct {
	o     options
	say   func(format string, args ...any)
	ps    []*provider
	of    map[*provider][]*event
	begun bool

	mu     sync.Mutex
	faults []string
}

func (x *proof) fault(format string, args ...any) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.faults = append(x.faults, fmt.Sprintf(format, args...))
}

// prepare makes the events.
func (x *proof) prepare() (faults []error) {
	x.ps = providers()
	for _, p := range x.ps {
		all, err := events(p, x.o.events)
		if err == nil && p.name == "github" && x.o.github != "" {
			var real []*event
			if real, err = githubEvents(x.o.github); err != nil {
				err = fmt.Errorf("-github-payloads: %w", err)
			}
			all = append(all, real...)
		}
		if err != nil {
			faults = append(faults, err)
		}
		x.of[p] = all
	}
	return faults
}

// result is what -json prints.
type result struct {
	Seed      uint64    `json:"seed"`
	Providers []*counts `json:"providers"`
	Faults    []string  `json:"faults"`
	OK        bool      `json:"ok"`
}

// perform runs server, worker and senders, and judges.
func (x *proof) perform(ctx context.Context, url, run string) (r *result, err error) {
	ctx, cancel := context.WithTimeout(ctx, x.o.patience)
	defer cancel()
	pool, err := servers.OpenPool(ctx, url, 40) // partitions, their parked rows, and requests
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	in := &ingest{run: run, pool: pool, failed: map[string]bool{}}
	defer func() {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		err = errors.Join(err, in.cleanUp(bounded))
	}()
	serving, stop := context.WithCancel(ctx)
	defer stop()
	ready, served := make(chan struct{}), make(chan error, 1)
	go func() { served <- in.serve(serving, x.ps, ready) }()
	select {
	case <-ready:
	case err := <-served:
		return nil, err
	}
	x.begun = true
	r, err = x.send(ctx, in)
	if err == nil {
		x.say("everything is answered; waiting for the worker")
		err = in.drained(ctx)
	}
	stop()
	if err := errors.Join(err, <-served); err != nil {
		return nil, err
	}
	for _, c := range r.Providers {
		if err := x.checkEffects(ctx, in, c); err != nil {
			return nil, err
		}
	}
	r.Faults = append([]string{}, x.faults...)
	r.OK = len(r.Faults) == 0
	return r, nil
}

// send sends everything: first the events, among them copies and requests that were tampered with;
// then the recorded requests.
func (x *proof) send(ctx context.Context, in *ingest) (*result, error) {
	for x.o.seed == 0 {
		x.o.seed = rand.Uint64()
	}
	x.say("seed %d; %d providers at %s", x.o.seed, len(x.ps), in.url)
	s := &sender{url: in.url, client: &http.Client{Timeout: 30 * time.Second}, random: rand.New(rand.NewPCG(x.o.seed, 1)), faults: x.fault,
		counts: map[*provider]*counts{}}
	defer s.client.CloseIdleConnections()
	r := &result{Seed: x.o.seed}
	var first, second []delivery
	for _, p := range x.ps {
		s.counts[p] = &counts{Provider: p.name, Unique: len(x.of[p])}
		r.Providers = append(r.Providers, s.counts[p])
		for i, e := range x.of[p] {
			first = append(first, goodDelivery(p, e))
			for s.random.Float64() < x.o.duplicates && len(first) < 1_000_000 {
				first = append(first, goodDelivery(p, e))
				if s.random.IntN(2) == 0 {
					break
				}
			}
			if i%3 == 0 {
				first = append(first, tamperedDelivery(p, e, i/3))
			}
			if p.idSaid && i%10 == 0 {
				second = append(second, recordedDelivery(p, e, i))
			}
		}
	}
	x.say("sending %d requests: copies, out of order, some tampered with, some too old", len(first)+len(second))
	if err := s.send(ctx, first); err != nil {
		return nil, err
	}
	return r, s.send(ctx, second)
}

// checkEffects compares what was sent with what is in the database.
func (x *proof) checkEffects(ctx context.Context, in *ingest, c *counts) error {
	p := x.ps[slices.IndexFunc(x.ps, func(p *provider) bool { return p.name == c.Provider })]
	topic := webhook.Topic(in.endpoint(p))
	if err := in.pool.QueryRow(ctx, `select count(*) from onlyonce.parked where kind = 'event' and topic = $1`, topic).Scan(&c.Parked); err != nil {
		return err
	}
	type effect struct {
		ID, Object string
		Version    int64
	}
	rows, err := in.pool.Query(ctx, `select id, object, version from webhook_ingest_effects where run = $1 and endpoint = $2 order by at`, in.run, topic)
	if err != nil {
		return err
	}
	effects, err := pgx.CollectRows(rows, pgx.RowToStructByPos[effect])
	if err != nil {
		return err
	}
	c.Effects = len(effects)
	times, reached := map[string]int{}, map[string]int64{}
	for _, e := range effects {
		times[e.ID]++
		if e.Object != "" && e.Version < reached[e.Object] {
			x.fault("%s: version %d of %s was applied behind version %d", p.name, e.Version, e.Object, reached[e.Object])
		}
		reached[e.Object] = max(reached[e.Object], e.Version)
	}
	for _, e := range x.of[p] {
		switch n := times[e.id]; {
		case n > 1:
			x.fault("%s: %s took effect %d times", p.name, e.id, n)
		case n == 0 && e.object != "" && reached[e.object] > e.version:
			c.Overtaken++
		case n == 0:
			x.fault("%s: %s was answered with 200, and took no effect", p.name, e.id)
		}
		delete(times, e.id)
	}
	for id := range times {
		x.fault("%s: %s took effect, but was never sent", p.name, id)
	}
	if c.Parked != c.Recorded {
		x.fault("%s: %d are set aside, and %d recorded requests were sent", p.name, c.Parked, c.Recorded)
	}
	if c.Refused != c.Tampered {
		x.fault("%s: %d of %d requests that are not right were refused", p.name, c.Refused, c.Tampered)
	}
	if want := c.Produced - c.Retried - c.Unique; c.Duplicates != want {
		x.fault("%s: %d copies were answered as such, want %d", p.name, c.Duplicates, want)
	}
	return nil
}

// Good is true if everything is as it must be.
func (r *result) Good() bool { return r.OK }

// Table is what a person reads.
func (r *result) Table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-10s %7s %9s %11s %8s %9s %8s %9s %7s %8s %10s\n", "", "unique", "produced", "duplicates", "retried", "tampered", "refused", "recorded", "parked", "effects", "overtaken")
	all := &counts{Provider: "all"}
	for _, c := range append(slices.Clone(r.Providers), all) {
		fmt.Fprintf(&b, "%-10s %7d %9d %11d %8d %9d %8d %9d %7d %8d %10d\n", c.Provider, c.Unique, c.Produced, c.Duplicates, c.Retried, c.Tampered, c.Refused, c.Recorded, c.Parked, c.Effects, c.Overtaken)
		all.Unique, all.Produced, all.Duplicates, all.Retried = all.Unique+c.Unique, all.Produced+c.Produced, all.Duplicates+c.Duplicates, all.Retried+c.Retried
		all.Tampered, all.Refused, all.Recorded, all.Parked = all.Tampered+c.Tampered, all.Refused+c.Refused, all.Recorded+c.Recorded, all.Parked+c.Parked
		all.Effects, all.Overtaken = all.Effects+c.Effects, all.Overtaken+c.Overtaken
	}
	b.WriteByte('\n')
	if r.OK {
		b.WriteString("ok  Each event took effect once, or was overtaken by a later version of its object;\n    requests that were tampered with, too old, or sent by another sender had none.\n")
		return b.String()
	}
	for _, f := range r.Faults {
		fmt.Fprintf(&b, "BREACH  %s\n", f)
	}
	return b.String()
}
