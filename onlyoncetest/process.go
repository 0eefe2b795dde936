package onlyoncetest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/process"
	"github.com/onlyonce/onlyonce/internal/rig/wire"
)

// Runner is a part of a program that runs until its context ends, for example a
// [consumer.Consumer], an outbox.Relay or a webhook.Endpoint.
type Runner interface{ Run(context.Context) error }

// RunnerFunc is a function as a [Runner].
type RunnerFunc func(context.Context) error

// Run implements Runner.
func (f RunnerFunc) Run(ctx context.Context) error { return f(ctx) }

// Process is one imaginary process of a [Case]. When it dies, its connections to Postgres break,
// its requests get no answer, and its context ends. Its memory is the test's: a handler's variables
// outside of the values that Start makes outlive it.
type Process struct {
	// Pool is the process's pool. Run watches all of its statements.
	Pool *pgxpool.Pool
	// HTTP is the process's HTTP client, for calls of the handler or of your own sink. Package
	// httpsink takes no client: set its BaseURL to an address from [Process.Reach].
	HTTP *http.Client

	run    *play
	number int
	wire   *wire.Wire
	ctx    context.Context
	cancel context.CancelFunc
	disown func() // the pool is not the process's any more
	// dead is set when the process dies: from then on it sends nothing.
	dead   atomic.Bool
	buried sync.Once
	ended  chan struct{} // closed when its Runner has returned
	failed error         // what the Runner returned, once ended is closed
	left   sync.WaitGroup

	mu      sync.Mutex
	sources []*feed
	handler http.Handler
	reached []remoteAddress
}

// Generation counts the processes of one history, from 1.
func (p *Process) Generation() int { return p.number }

// Source returns a source of the case's messages, in place of the one for Kafka. Its group is the
// same in each process, and the process that joined last owns all partitions.
func (p *Process) Source() consumer.Source {
	s := p.run.logs.source(group)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sources = append(p.sources, s)
	return s
}

// Logger returns a logger that writes errors into the timeline. Parts made with Pool and without a
// Logger use it too: most of their warnings are the history's own faults.
func (p *Process) Logger() *slog.Logger {
	return p.run.timeline.Logger(p.who()+"logs ", slog.LevelError)
}

// Tune shortens a configuration's times, so a history takes milliseconds. It sets Linger, Backoff
// and Logger, and raises MaxAttempts to at least 20, because a history's faults count as attempts.
// Scope defaults to "test", and Key to the header message-id, unless the process has a broker
// ([Process.Broker]): the ids of stored messages are those of their deliveries.
//
// It also lets Run repeat calls of the handler as after a serialization failure, play some
// histories with a BatchSize of 1, and test whether the program can recognize copies of messages.
// Without Tune these are left out.
func (p *Process) Tune(cfg consumer.Config) consumer.Config {
	key := cfg.Key
	cfg = tuned(cfg)
	if p.run.receives(p) {
		cfg.Key = key
	}
	cfg.MaxAttempts = max(cfg.MaxAttempts, 20)
	cfg.Logger = p.Logger()
	cfg.Middleware = append([]consumer.Middleware{p.run.handled}, cfg.Middleware...)
	if !cfg.PositionsOnly {
		p.run.copies.Store(true)
	}
	p.run.tuned.Store(true)
	if cfg.Concurrency > 1 {
		p.run.concurrent.Store(true)
	}
	if p.run.meets(single) {
		cfg.BatchSize = 1
	}
	return cfg
}

// Consume returns a Start for a handler that needs no pool.
func Consume(handler consumer.Handler, cfg consumer.Config) func(*Process) (Runner, error) {
	return func(p *Process) (Runner, error) { return consumer.New(p.Pool, p.Source(), handler, p.Tune(cfg)) }
}

// errDead is what a process that has died gets.
var errDead = errors.New("onlyoncetest: the process is dead")

// newProcess makes a process without starting anything.
func (x *play) newProcess() (*Process, error) {
	p := &Process{run: x, ended: make(chan struct{})}
	im := &process.Process{Made: x.c.parts.add}
	p.ctx, p.cancel = context.WithCancel(process.With(context.WithValue(x.ctx, processKey{}, p), im))
	x.mu.Lock()
	x.processes = append(x.processes, p)
	p.number = len(x.processes)
	x.mu.Unlock()
	p.wire = &wire.Wire{
		At:       func(m wire.Message) wire.Action { return x.at(p, m) },
		Answered: func(a wire.Answer) { x.timeline.Answered(p.who(), a) },
	}
	cfg, err := pgxpool.ParseConfig(x.db.Address())
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = 10
	cfg.ConnConfig.RuntimeParams["application_name"] = p.application()
	cfg.ConnConfig.Tracer = tracer{p}
	through := p.wire.Dial(cfg.ConnConfig.DialFunc)
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if p.dead.Load() {
			return nil, errDead
		}
		if err := x.awaitServer(ctx); err != nil {
			return nil, err
		}
		c, err := through(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &watched{c, p}, nil
	}
	if p.Pool, err = pgxpool.NewWithConfig(p.ctx, cfg); err != nil {
		return nil, err
	}
	im.Logger = p.Logger()
	p.disown = im.Adopt(p.Pool)
	p.HTTP = &http.Client{Transport: &transport{p, http.DefaultTransport}, Timeout: 10 * time.Second}
	return p, nil
}

// application is the name of its sessions.
func (p *Process) application() string { return fmt.Sprintf("onlyoncetest process %d", p.number) }

type processKey struct{}

// watched is a connection that ends its process when it breaks, if the process is to die.
type watched struct {
	net.Conn
	p *Process
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if err != nil && w.p.dead.Load() {
		w.p.bury()
	}
	return n, err
}

// bury ends what is left of a process that has died. It does not wait.
func (p *Process) bury() {
	p.buried.Do(func() {
		p.cancel()
		p.left.Go(p.wire.Close)
		p.run.changed()
	})
}

// start runs the case's parts. The process ends when one of them returns.
func (p *Process) start(c *Case) error {
	var runners []Runner
	if c.Start != nil {
		r, err := c.Start(p)
		if err != nil {
			return err
		}
		if r != nil {
			runners = append(runners, r)
		}
	}
	if c.Serve != nil {
		h, r, err := c.Serve(p)
		if err != nil {
			return err
		}
		if r != nil {
			runners = append(runners, r)
		}
		p.mu.Lock()
		p.handler = h
		p.mu.Unlock()
	}
	c.parts.start(runners)
	p.left.Go(func() {
		p.failed = p.mortal(runners).Run(p.ctx)
		close(p.ended)
		p.run.changed()
	})
	return nil
}

// mortal returns runners whose relays end at once if the process dies. A relay tries for as long as
// its lease to store the results of calls under way. The calls are over by then, and the results of
// a process that has died are lost.
func (p *Process) mortal(runners all) all {
	mortals := slices.Clone(runners)
	for i, r := range runners {
		switch part := r.(type) {
		case all:
			mortals[i] = p.mortal(part)
		case interface{ Wake() }:
			if isPart(r) {
				mortals[i] = RunnerFunc(func(ctx context.Context) error { return p.unlessDead(ctx, r) })
			}
		}
	}
	return mortals
}

// unlessDead runs a part until it returns or the process dies.
func (p *Process) unlessDead(ctx context.Context, r Runner) error {
	ended := make(chan error, 1)
	p.left.Go(func() { ended <- r.Run(ctx) })
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	if p.dead.Load() {
		return nil
	}
	return <-ended
}

// All returns a Runner that runs several others until its context ends or one of them returns.
func All(runners ...Runner) Runner { return all(runners) }

type all []Runner

// Run implements Runner.
func (a all) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(a))
	var wg sync.WaitGroup
	for i, r := range a {
		wg.Go(func() {
			defer cancel()
			errs[i] = r.Run(ctx)
		})
	}
	if len(a) == 0 {
		<-ctx.Done()
	}
	wg.Wait()
	return errors.Join(errs...)
}
