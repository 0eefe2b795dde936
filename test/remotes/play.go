package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/rig/workerdb"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
)

// goodEvery is how often a call of tenant good is committed.
const goodEvery = 20 * time.Millisecond

// scene is how the remote of bad tenants behaves.
type scene struct {
	name    string
	tenants int // bad ones
	calls   int // of them together
	// answer answers their n-th request, from 0. The request's context ends with the connection.
	answer func(w http.ResponseWriter, r *http.Request, n int)
}

func status(code int) func(http.ResponseWriter, *http.Request, int) {
	return func(w http.ResponseWriter, _ *http.Request, _ int) { w.WriteHeader(code) }
}

func hang(_ http.ResponseWriter, r *http.Request, _ int) { <-r.Context().Done() }

func after(d time.Duration) func(http.ResponseWriter, *http.Request, int) {
	return func(_ http.ResponseWriter, r *http.Request, _ int) {
		select {
		case <-time.After(d):
		case <-r.Context().Done():
		}
	}
}

func retryAfter(w http.ResponseWriter, _ *http.Request, _ int) {
	w.Header().Set("Retry-After", "3600")
	w.WriteHeader(http.StatusServiceUnavailable)
}

// mixed answers 500, 503 and not at all, in turn.
func mixed(w http.ResponseWriter, r *http.Request, n int) {
	switch n % 3 {
	case 0:
		w.WriteHeader(http.StatusInternalServerError)
	case 1:
		w.WriteHeader(http.StatusServiceUnavailable)
	case 2:
		hang(w, r, n)
	}
}

// switchProtocols hands the connection over, which nobody has asked for, and keeps it.
func switchProtocols(w http.ResponseWriter, _ *http.Request, _ int) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
	_, _ = io.Copy(io.Discard, buffered) // until the other end closes
}

var cases = []scene{
	{"nobody is bad", 0, 0, nil},
	{"500", 1, 200, status(http.StatusInternalServerError)},
	{"503", 1, 200, status(http.StatusServiceUnavailable)},
	{"hangs", 1, 200, hang},
	{"500, 503 and hangs in turn", 1, 200, mixed},
	{"answers after 10 s", 1, 200, after(10 * time.Second)},
	{"answers after 200 ms", 1, 200, after(200 * time.Millisecond)},
	{"101", 1, 8, switchProtocols},
	{"two tenants, 503 with Retry-After: 3600", 2, 8, retryAfter},
	{"two tenants, 503", 2, 150, status(http.StatusServiceUnavailable)},
	{"two tenants hang", 2, 150, hang},
}

// play is a scene that is played.
type play struct {
	scene
	calls int           // of tenant good
	most  time.Duration // how long it waits for the last of them

	pool    *pgxpool.Pool
	bad     atomic.Int64 // requests of bad tenants
	arrived atomic.Int64
	at      []atomic.Int64  // when good's calls have arrived, in nanoseconds since 1970
	took    []time.Duration // from a call's commit to its arrival
	ended   error           // what the relay's Run returned
}

func (p *play) run(ctx context.Context, server *workerdb.Server) (err error) {
	address, err := server.Make(ctx, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Remove(context.WithoutCancel(ctx), address)) }()
	if p.pool, err = pgxpool.New(ctx, address); err != nil {
		return err
	}
	defer p.pool.Close()
	p.at = make([]atomic.Int64, p.calls)
	remote := httptest.NewServer(http.HandlerFunc(p.serve))
	defer remote.Close()
	defer remote.CloseClientConnections()
	sink, err := httpsink.New(httpsink.Config{Name: "hooks", BaseURL: remote.URL, KeyWindow: 24 * time.Hour, AllowPrivate: true})
	if err != nil {
		return err
	}
	defer sink.Close()
	relay, err := outbox.NewRelay(p.pool, outbox.RelayConfig{
		Sinks: []outbox.Sink{sink}, DrainTimeout: time.Second, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	var ended sync.WaitGroup
	ended.Go(func() { p.ended = relay.Run(running) })
	defer ended.Wait()
	defer stop()
	if err := p.commitBad(ctx); err != nil {
		return err
	}
	return p.commitGood(ctx)
}

// commitBad commits the calls of bad tenants, in one transaction.
func (p *play) commitBad(ctx context.Context) error {
	return pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		for i := range p.scene.calls {
			c := call(fmt.Sprint("bad-", i%p.tenants), i)
			if err := outbox.Enqueue(ctx, tx, c); err != nil {
				return err
			}
		}
		return nil
	})
}

// commitGood commits the calls of tenant good at their pace, and waits until they have arrived.
func (p *play) commitGood(ctx context.Context) error {
	committed := make([]time.Time, p.calls)
	tick := time.NewTicker(goodEvery)
	defer tick.Stop()
	for i := range p.calls {
		<-tick.C
		if err := pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error { return outbox.Enqueue(ctx, tx, call("good", i)) }); err != nil {
			return err
		}
		committed[i] = time.Now()
	}
	until := time.Now().Add(p.most)
	for p.missing() > 0 && time.Now().Before(until) {
		<-tick.C
	}
	now := time.Now()
	for i, c := range committed {
		at := now
		if nanos := p.at[i].Load(); nanos != 0 {
			at = time.Unix(0, nanos)
		}
		p.took = append(p.took, max(at.Sub(c), 0))
	}
	return nil
}

func call(tenant string, i int) outbox.Call {
	return outbox.Call{
		Sink: "hooks", Name: "hook", Scope: "remotes", ID: fmt.Sprint(i), Tenant: tenant,
		Target: fmt.Sprintf("/%s/%d", tenant, i), Body: []byte(`{}`),
	}
}

// serve is the remote.
func (p *play) serve(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	if strings.HasPrefix(r.URL.Path, "/bad") {
		p.answer(w, r, int(p.bad.Add(1)-1))
		return
	}
	var i int
	if _, err := fmt.Sscanf(r.URL.Path, "/good/%d", &i); err == nil && p.at[i].CompareAndSwap(0, time.Now().UnixNano()) {
		p.arrived.Add(1)
	}
}
