package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/telemetry/test/system"
)

// workload is a process that is worked with and killed, its database and its remote.
type workload struct {
	admin   *pgx.Conn // of the server
	name    string    // of the database
	pool    *pgxpool.Pool
	remote  *httptest.Server
	down    atomic.Bool // the remote answers 503 for payments
	address string      // of the process

	process *exec.Cmd
	ended   chan error
	life    int // how often the process was started
	sent    int // requests so far
}

func newWorkload(ctx context.Context) (*workload, error) {
	server := os.Getenv("ONLYONCE_POSTGRES_URL")
	if server == "" {
		return nil, errors.New("ONLYONCE_POSTGRES_URL must name a Postgres: run make dashboards")
	}
	w := &workload{name: fmt.Sprintf("dashboards_%d", os.Getpid())}
	w.remote = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		// The remote of the sink with the short window never answers well.
		if r.URL.Path == "/note" || w.down.Load() {
			rw.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	var err error
	if w.address, err = free(); err != nil {
		return nil, err
	}
	if w.admin, err = pgx.Connect(ctx, server); err != nil {
		return nil, err
	}
	if _, err = w.admin.Exec(ctx, `create database `+w.name); err != nil {
		return nil, err
	}
	config, err := pgxpool.ParseConfig(server)
	if err != nil {
		return nil, err
	}
	config.ConnConfig.Database = w.name
	if w.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, err
	}
	return w, w.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		_, err := migrations.Apply(ctx, c.Conn())
		return err
	})
}

// end kills the process and drops the database.
func (w *workload) end() {
	w.kill()
	w.pool.Close()
	w.remote.Close()
	ctx := context.Background()
	_, _ = w.admin.Exec(ctx, `drop database `+w.name+` with (force)`)
	_ = w.admin.Close(ctx)
}

// start starts the process. Its logs have more records than those of the one before.
func (w *workload) start(ctx context.Context) error {
	w.life++
	process := exec.Command(os.Args[0]) //nolint:gosec // this program
	process.Env = append(os.Environ(), envWorker+"="+strconv.Itoa(w.life),
		envDatabase+"="+w.name, envRemote+"="+w.remote.URL, envAddress+"="+w.address)
	process.Stderr = os.Stderr
	if err := process.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- process.Wait() }()
	w.process, w.ended = process, ended
	return until(ctx, "the workload answers", func() (bool, error) {
		select {
		case err := <-w.ended:
			w.ended <- err
			return false, fmt.Errorf("the workload ended: %w", err)
		default:
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+w.address+"/metrics", http.NoBody)
		if err != nil {
			return false, err
		}
		resp, err := client.Do(req)
		if err != nil {
			return false, nil //nolint:nilerr // not yet
		}
		return true, resp.Body.Close()
	})
}

func (w *workload) kill() {
	if w.process != nil {
		_ = w.process.Process.Kill()
		w.ended <- <-w.ended
	}
}

// run gives the workload its history: two kills, a parked message, a halt, a call to reconcile, and
// a rotation. It returns when Prometheus has seen each.
func (w *workload) run(ctx context.Context, p *prometheus) error {
	for kills := 0; ; kills++ {
		if err := w.start(ctx); err != nil {
			return err
		}
		if kills == 2 {
			break
		}
		if err := w.sees(ctx, p, `sum(onlyonce_consumer_messages_total{scope="stock",outcome="handled"}) > 0`); err != nil {
			return err
		}
		w.kill()
	}
	for _, query := range []string{
		`onlyonce_parked{kind="message",state="waiting"} >= 1`,
		`onlyonce_consumer_partitions{scope="audit",state="halted",reason="new-topic"} >= 1`,
		`onlyonce_parked{kind="call",sink="notes",state="reconcile"} >= 1`,
		`onlyonce_outbox_attempts_total{sink="notes",outcome="reconcile"} >= 1`,
	} {
		if err := w.sees(ctx, p, query); err != nil {
			return err
		}
	}
	// A ring rotates when its current segment is a seventh of the horizon old.
	const free = `onlyonce_segments_free{ring="consumer_keys"}`
	before, _, err := p.value(ctx, free)
	if err != nil {
		return err
	}
	if _, err := w.pool.Exec(
		ctx,
		`update onlyonce.segments set opened_at = opened_at - interval '2 days' where ring = 'consumer_keys'`,
	); err != nil {
		return err
	}
	if err := w.sees(ctx, p, free+" < "+before); err != nil {
		return err
	}
	w.down.Store(true) // from now on payments wait for another attempt
	return nil
}

// sees waits until a query has a value, while traffic goes on.
func (w *workload) sees(ctx context.Context, p *prometheus, query string) error {
	return until(ctx, "Prometheus has "+query, func() (bool, error) {
		if err := w.traffic(ctx); err != nil {
			return false, err
		}
		_, has, err := p.value(ctx, query)
		return has, err
	})
}

// traffic sends some requests to the workload: keys that are new, that are repeated, and that are
// used for another request; webhooks that are signed, and one that is not; a message of a queue.
func (w *workload) traffic(ctx context.Context) error {
	w.sent++
	n := strconv.Itoa(w.sent)
	key := func(of string) func(http.Header) { return func(h http.Header) { h.Set("Idempotency-Key", of) } }
	for _, r := range []struct {
		path, body string
		headers    func(http.Header)
	}{
		{system.Route, "{}", key("key-" + n)}, {system.Route, "{}", key("key-" + n)}, {system.Route, "[]", key("key-" + n)},
		{"/hooks", n, func(h http.Header) { system.Sign(h, n, []byte(n)) }}, {"/hooks", n, func(http.Header) {}},
		{system.Messages, n, func(http.Header) {}},
	} {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+w.address+r.path, bytes.NewReader([]byte(r.body)))
		if err != nil {
			return err
		}
		r.headers(req.Header)
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	return nil
}
