// Relay-worker shows `onlyonce relay` at work: it plays a service that enqueues calls, and the
// remote that they are for. The relay between the two is a process of its own; README.md has the
// commands.
//
// Exit status: 0 each committed call was applied once; 1 one was not; 2 usage or environment.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/outbox"
)

const envPostgres = "ONLYONCE_POSTGRES_URL"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	complain := func(err error) int {
		fmt.Fprintln(stderr, "relay-worker:", err)
		return 2
	}
	fs := flag.NewFlagSet("relay-worker", flag.ContinueOnError)
	fs.SetOutput(stderr)
	address := fs.String("postgres", os.Getenv(envPostgres), "the database, as a `URL` (default: $"+envPostgres+")")
	listen := fs.String("listen", "127.0.0.1:8099", "where the remote listens: `host:port`, as relay.json names it")
	calls := fs.Int("calls", 100, "calls to commit, 1 to 100000")
	patience := fs.Duration("patience", time.Minute, "give up when no call has come for so long")
	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case fs.NArg() > 0:
		return complain(fmt.Errorf("unexpected argument %q: values follow their flags", fs.Arg(0)))
	case *address == "":
		return complain(fmt.Errorf("-postgres: no database given: add -postgres postgres://user@host:5432/name, or set %s", envPostgres))
	case *calls < 1 || *calls > 100_000:
		return complain(fmt.Errorf("-calls: %d is not from 1 to 100000", *calls))
	case *patience < time.Second:
		return complain(fmt.Errorf("-patience: %v is less than 1s", *patience))
	}
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return complain(fmt.Errorf("-listen: %w", err))
	}
	pool, err := pgxpool.New(ctx, *address)
	if err != nil {
		_ = l.Close()
		return complain(fmt.Errorf("-postgres: %w", err))
	}
	defer pool.Close()
	r := &remote{applied: map[string]bool{}, moved: make(chan struct{}, 1)}
	server := &http.Server{Handler: r, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = server.Serve(l) }()
	defer func() { _ = server.Close() }()

	keys, err := enqueue(ctx, pool, uuid.NewString(), *calls) // calls of another run are others
	if err != nil {
		return complain(err)
	}
	r.expect(keys)
	if !r.waitDelivered(ctx, *patience) {
		fmt.Fprintln(stderr, "relay-worker: calls stopped coming: does `onlyonce relay -config examples/relay-worker/relay.json` run, on this database?")
	}
	committed, err := keysOf(ctx, pool, "%") // calls of a run before this one may come too
	if err != nil {
		return complain(err)
	}
	return r.report(stdout, keys, committed)
}

// enqueue is the service. It commits each call with the data that needs it (here, none), and rolls
// back as many transactions, whose calls must never be sent. It returns the keys of the committed
// calls. The run's name and a number identify a call: one that is enqueued again is not sent again.
func enqueue(ctx context.Context, pool *pgxpool.Pool, this string, n int) (map[string]bool, error) {
	undone := errors.New("rolled back on purpose")
	for i := range 2 * n {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			err := outbox.Enqueue(ctx, tx, outbox.Call{Sink: "relay-worker", Name: "notify", Scope: "relay-worker/" + this, ID: fmt.Sprint(i),
				Target: "/notify", Body: fmt.Appendf(nil, `{"number": %d}`, i)})
			if err == nil && i%2 == 1 {
				err = undone
			}
			return err
		})
		if err != nil && !errors.Is(err, undone) {
			return nil, fmt.Errorf("enqueueing: %w", err)
		}
	}
	return keysOf(ctx, pool, this)
}

// keysOf returns the keys of the calls that are committed, of one run or (%) of all.
func keysOf(ctx context.Context, pool *pgxpool.Pool, run string) (map[string]bool, error) {
	rows, err := pool.Query(ctx, `select key::text from onlyonce.outbox_log where sink = 'relay-worker' and scope like 'relay-worker/' || $1`, run)
	if err != nil {
		return nil, err
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	keys := map[string]bool{}
	for _, k := range all {
		keys[k] = true
	}
	return keys, err
}

// remote applies each call once, by its idempotency key, and fails every fifth request: in turns
// before it applies the call, and after.
type remote struct {
	moved chan struct{}

	mu       sync.Mutex
	requests int
	applied  map[string]bool // by key
	left     map[string]bool // keys that are still to come
}

// expect says which calls are waited for.
func (r *remote) expect(keys map[string]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left = maps.Clone(keys)
	for k := range r.applied {
		delete(r.left, k)
	}
}

func (r *remote) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	_, _ = io.Copy(io.Discard, req.Body)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests++
	fails := r.requests%5 == 0
	if !fails || r.requests%10 == 0 {
		key := req.Header.Get("Idempotency-Key")
		r.applied[key] = true
		delete(r.left, key)
	}
	if fails {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	select {
	case r.moved <- struct{}{}:
	default:
	}
}

// waitDelivered waits until all calls were applied, or nothing has come for a while.
func (r *remote) waitDelivered(ctx context.Context, patience time.Duration) bool {
	t := time.NewTimer(patience)
	defer t.Stop()
	for {
		r.mu.Lock()
		done := len(r.left) == 0
		r.mu.Unlock()
		if done {
			return true
		}
		select {
		case <-r.moved:
			t.Reset(patience)
		case <-t.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// report compares what was applied with what was committed, in this run and in all.
func (r *remote) report(out io.Writer, keys, committed map[string]bool) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	invented := 0
	for k := range r.applied {
		if !committed[k] {
			invented++
		}
	}
	fmt.Fprintf(out, "%d calls committed, %d requests came, %d calls applied; missing %d, not committed %d\n",
		len(keys), r.requests, len(keys)-len(r.left), len(r.left), invented)
	if len(r.left)+invented > 0 {
		return 1
	}
	return 0
}
