package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/test/fleet"
	"github.com/onlyonce/onlyonce/test/storm/rig"
	"github.com/onlyonce/onlyonce/webhook"
)

const (
	partitions = 6
	batchSize  = 20
	// leaseTTL is short, because it is waited for after a kill.
	leaseTTL = 3 * time.Second
	poll     = 50 * time.Millisecond
)

// workerConfig is all that a worker needs to know.
type workerConfig struct{ Postgres string }

// workerMain is main in a worker process.
func workerMain() int {
	var cfg workerConfig
	return rig.Serve(&cfg, func(ctx context.Context, c *fleet.Child) error { return work(ctx, c, cfg) })
}

// worker is one process.
type worker struct {
	*fleet.Child
	pool *pgxpool.Pool
	jobs []func(context.Context) error // until their context ends
}

// work receives, or applies, or both: in one process, or with a source of its own. A worker's seat
// says which, so that a replacement does what the one before did.
func work(ctx context.Context, c *fleet.Child, cfg workerConfig) error {
	pool, err := rig.Pool(ctx, cfg.Postgres, 20, nil)
	if err != nil {
		return err
	}
	defer pool.Close()
	w := &worker{Child: c, pool: pool}
	if c.Seat%3 == 1 {
		err = w.apply()
	} else {
		err = w.receive(c.Seat%3 == 2)
	}
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	errs := make([]error, len(w.jobs))
	var all sync.WaitGroup
	for i, job := range w.jobs {
		all.Go(func() {
			defer stop() // the others stop in order
			errs[i] = job(ctx)
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// receive serves the endpoints, and applies their events if they are to be sources too.
func (w *worker) receive(applies bool) error {
	mux := http.NewServeMux()
	for _, name := range endpoints {
		e, err := w.endpoint(name)
		if err != nil {
			return err
		}
		mux.Handle("/"+name, e)
		if !applies {
			w.jobs = append(w.jobs, e.Upkeep)
			continue
		}
		if err := w.consume(name, e); err != nil {
			return err
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: w.watched(mux), ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: askFor}
	w.jobs = append(w.jobs, func(ctx context.Context) error {
		ended := make(chan error, 1)
		go func() { ended <- server.Serve(l) }()
		w.Tell(fleet.Event{Kind: fleet.Serving, Text: "http://" + l.Addr().String()})
		<-ctx.Done()
		err := server.Shutdown(context.WithoutCancel(ctx)) // after the requests that are under way
		if served := <-ended; !errors.Is(served, http.ErrServerClosed) {
			err = errors.Join(err, served)
		}
		return err
	})
	return nil
}

func (w *worker) endpoint(name string) (*webhook.Endpoint, error) {
	provider, secret := provider(name)
	return webhook.New(w.pool, webhook.Config{
		Name:         name,
		Provider:     provider,
		Secrets:      []string{secret},
		Partitions:   partitions,
		PollInterval: poll,
		LeaseTTL:     leaseTTL,
		OrderingKey: func(e *webhook.Event) string {
			w.Trap("ordering-key", e.ID)
			var p payload
			if err := json.Unmarshal(e.Body, &p); err != nil {
				w.Tell(fleet.Event{Kind: fleet.Breach, Text: err.Error()})
			}
			return p.Key
		},
		Hooks: webhook.Hooks{ReceiveEnd: func(_ context.Context, r webhook.ReceiveEnd) {
			w.Trap("receive-end", r.ID)
			if r.Err != nil {
				w.Tell(fleet.Event{Kind: fleet.Trouble, Text: r.Err.Error()})
			}
		}},
	})
}

const (
	// In the events for the parent these numbers are of requests, and those below of partitions.
	firstRequest = 1000
	requests     = 1000
	// The parent is told of one request of so many: otherwise kills would hit batches hardly ever.
	toldOf = 16
)

// watched reports to the parent when a request begins and when it is answered, so that kills can be
// aimed.
func (w *worker) watched(to http.Handler) http.Handler {
	var came atomic.Int32
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		n := came.Add(1)
		if n%toldOf != 0 {
			to.ServeHTTP(rw, r)
			return
		}
		number := firstRequest + n/toldOf%requests
		begun := time.Now()
		w.Tell(fleet.Event{Kind: fleet.Begin, Partition: number})
		to.ServeHTTP(rw, r)
		w.Tell(fleet.Event{Kind: fleet.Done, Partition: number, Micros: time.Since(begun).Microseconds()})
	})
}

// apply applies the events that others receive.
func (w *worker) apply() error {
	for _, name := range endpoints {
		s, err := webhook.NewSource(w.pool, webhook.SourceConfig{
			Endpoints:    []string{name},
			Partitions:   partitions,
			PollInterval: poll,
			LeaseTTL:     leaseTTL,
		})
		if err != nil {
			return err
		}
		if err := w.consume(name, s); err != nil {
			return err
		}
	}
	return nil
}

// consume applies the events of an endpoint.
func (w *worker) consume(name string, s consumer.Source) error {
	c, err := consumer.New(w.pool, s, consumer.HandlerFunc(w.handle), consumer.Config{
		Scope:     name,
		BatchSize: batchSize,
		Backoff:   dedupe.Backoff{Min: 20 * time.Millisecond, Max: 500 * time.Millisecond},
		// This is how long a worker that is suspended in mid-batch keeps its successor waiting.
		Timeouts:     dedupe.Timeouts{Lock: 2 * time.Second, Idle: 3 * time.Second},
		DrainTimeout: 3 * time.Second,
		Hooks:        w.Hooks(nil),
	})
	if err != nil {
		return err
	}
	w.jobs = append(w.jobs, c.Run)
	return nil
}

func (w *worker) handle(_ context.Context, tx consumer.Tx, m *consumer.Message) error {
	if err := w.Entered(m); err != nil {
		return err
	}
	e, err := webhook.EventOf(m)
	if err != nil {
		return consumer.Permanent(err)
	}
	var got payload
	if err := json.Unmarshal(e.Body, &got); err != nil {
		return consumer.Permanent(err)
	}
	tx.Queue(rig.EffectSQL, got.ID, got.Key, got.Seq)
	return nil
}
