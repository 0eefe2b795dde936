package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// across measures calls whose relay is another process: the program onlyonce-relay with its
// defaults, as the chart runs it. This process commits the calls and is their remote.
type across struct {
	calls int
	every time.Duration // between two calls
	idle  time.Duration // without a call, before the relay's idle cost is measured for a minute
}

// acrossBound is how long a call may take, so that a relay that is gone is found out.
const acrossBound = 2 * time.Minute

// measure prints how long calls took from the return of COMMIT to their arrival, how long their
// transactions took, and what the relay costs meanwhile and when it is idle: its own CPU time and
// that of its connections. A relay commits once before it calls (T10). So on a machine on which a
// COMMIT is slow now and then, a call is late as often, for the same reason.
func (a across) measure(ctx context.Context, srv *server, stdout io.Writer) (err error) {
	db, err := srv.fresh(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.drop()) }()
	pool, err := db.open(ctx, 1)
	if err != nil {
		return err
	}
	arrived := make(chan time.Time, 1)
	remote := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { arrived <- time.Now() }))
	defer remote.Close()
	relay, stop, err := startProgram(ctx, db, remote.URL)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if _, _, err := a.call(ctx, pool, arrived, 0); err != nil { // the relay has its lanes
		return err
	}
	active, err := costOf(ctx, db, relay, func() error {
		return a.paced(ctx, pool, arrived, stdout)
	})
	if err != nil {
		return err
	}
	if err := quiet(ctx, a.idle); err != nil {
		return err
	}
	idle, err := costOf(ctx, db, relay, func() error { return quiet(ctx, time.Minute) })
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "cores: %.4f while called, %.4f idle after %v\n", active, idle, a.idle)
	return err
}

// paced makes the calls, each at its time, and prints the percentiles.
func (a across) paced(ctx context.Context, pool *pgxpool.Pool, arrived chan time.Time, stdout io.Writer) error {
	tick := time.NewTicker(a.every)
	defer tick.Stop()
	var committing, calling []time.Duration
	for n := range a.calls {
		<-tick.C
		tx, call, err := a.call(ctx, pool, arrived, n+1)
		if err != nil {
			return err
		}
		committing = append(committing, tx)
		calling = append(calling, call)
	}
	_, err := fmt.Fprintf(stdout, "%d calls, one each %v\ncommit to call: %s\ntheir transactions: %s\n",
		a.calls, a.every, percentiles(calling), percentiles(committing))
	return err
}

// percentiles sorts durations and returns some of them.
func percentiles(took []time.Duration) string {
	slices.Sort(took)
	at := func(percent int) time.Duration {
		return took[min(len(took)*percent/100, len(took)-1)].Round(100 * time.Microsecond)
	}
	return fmt.Sprintf("p50 %v, p90 %v, p99 %v, max %v", at(50), at(90), at(99), at(100))
}

// call commits a call and waits until it arrives. It returns how long the transaction took, and the
// call from then on.
func (a across) call(ctx context.Context, pool *pgxpool.Pool, arrived chan time.Time, n int) (tx, call time.Duration, err error) {
	began := time.Now()
	if err := applyEnqueued(ctx, pool, n, []byte(`{}`)); err != nil {
		return 0, 0, err
	}
	committed := time.Now()
	select {
	case t := <-arrived:
		return committed.Sub(began), t.Sub(committed), nil
	case <-time.After(acrossBound):
		return 0, 0, fmt.Errorf("call %d was not made in %v", n, acrossBound)
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	}
}

// startProgram builds the program and starts a relay of one sink with it. It returns the process's
// id.
func startProgram(ctx context.Context, db *database, url string) (pid int, stop func() error, err error) {
	dir, err := os.MkdirTemp("", "onlyonce-bench-across")
	if err != nil {
		return 0, nil, err
	}
	remove := func() error { return os.RemoveAll(dir) }
	program, file := filepath.Join(dir, "onlyonce-relay"), filepath.Join(dir, "relay.json")
	if out, err := exec.CommandContext(ctx, "go",
		"-C", "../../cmd/onlyonce-relay", "build", "-o", program, ".").CombinedOutput(); err != nil {
		return 0, nil, errors.Join(fmt.Errorf("building the program: %w: %s", err, out), remove())
	}
	sink := map[string]any{"type": "http", "name": sinkName, "base_url": url, "key_window": "24h", "allow_private": true}
	config, err := json.Marshal(map[string]any{"sinks": []any{sink}})
	if err == nil {
		err = os.WriteFile(file, config, 0o600)
	}
	if err != nil {
		return 0, nil, errors.Join(err, remove())
	}
	cmd := exec.CommandContext(ctx, program, "-postgres", db.srv.address(db.name)+"&application_name="+relayApp, "-config", file)
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	if err := cmd.Start(); err != nil {
		return 0, nil, errors.Join(err, remove())
	}
	return cmd.Process.Pid, func() error {
		_ = cmd.Cancel()
		return errors.Join(cmd.Wait(), remove())
	}, nil
}

// costOf returns how much of a core a relay and the server take, while f runs.
func costOf(ctx context.Context, db *database, relay int, f func() error) (cores float64, err error) {
	before, err := relayCost(ctx, db, relay)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := f(); err != nil {
		return 0, err
	}
	after, err := relayCost(ctx, db, relay)
	return (after - before).Seconds() / time.Since(began).Seconds(), err
}

// relayCost returns the CPU time so far of a relay and of the server.
func relayCost(_ context.Context, db *database, relay int) (time.Duration, error) {
	own, ok := readStat(strconv.Itoa(relay))
	if !ok {
		return 0, errors.New("the CPU time of the relay is not known here, or it has ended")
	}
	server, ok := serverCPU(db.srv.postmaster)
	if !ok {
		return 0, errors.New("the CPU time of the server is not known here")
	}
	return own.own + server, nil
}

// quiet waits, because an idle relay is what is measured.
func quiet(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
