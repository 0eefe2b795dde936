// Relay-worker plays a service that enqueues calls, and the remote that they are for. The relay
// between the two is a process of its own, `onlyonce-relay`; README.md has the commands. It takes
// $ONLYONCE_POSTGRES_URL, and ends when the remote has every committed call.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/outbox"
)

const calls = 100

func main() {
	listen := flag.String("listen", "127.0.0.1:8099", "the `ADDR` of the remote, as relay.json names it")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("ONLYONCE_POSTGRES_URL"))
	if err != nil {
		log.Fatal(err)
	}
	r := newRemote()
	go func() { log.Fatal(http.ListenAndServe(*listen, r)) }()
	run := uuid.NewString() // calls of another run are others
	if err := enqueue(ctx, pool, run, calls); err != nil {
		log.Fatal(err)
	}
	fmt.Println("calls committed:", calls)
	for left := calls; left > 0; {
		select {
		case body := <-r.first:
			if strings.Contains(body, run) {
				left--
			}
		case <-ctx.Done():
			log.Fatal("interrupted: does `onlyonce-relay -config examples/relay-worker/relay.json` run, on this database?")
		}
	}
	fmt.Println("calls applied:", calls)
}

// enqueue is the service. It commits each call with the data that needs it (here, none), and rolls
// back as many transactions, whose calls must never be sent. The run's name and a number identify a
// call: one that is enqueued again is not sent again.
func enqueue(ctx context.Context, pool *pgxpool.Pool, run string, n int) error {
	undone := errors.New("rolled back on purpose")
	for i := range 2 * n {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			err := outbox.Enqueue(ctx, tx, outbox.Call{
				Sink:   "relay-worker",
				Name:   "notify",
				Scope:  "relay-worker/" + run,
				ID:     fmt.Sprint(i),
				Target: "/notify",
				Body:   fmt.Appendf(nil, `{"run": %q, "number": %d}`, run, i),
			})
			if err == nil && i%2 == 1 {
				err = undone
			}
			return err
		})
		if err != nil && !errors.Is(err, undone) {
			return fmt.Errorf("enqueueing: %w", err)
		}
	}
	return nil
}

// remote applies each call once, by its idempotency key, and fails every fifth request: in turns
// before it applies the call, and after.
type remote struct {
	first chan string // bodies of calls that were applied

	mu       sync.Mutex
	requests int
	applied  map[string]bool // by key
}

func newRemote() *remote {
	return &remote{first: make(chan string, 10*calls), applied: map[string]bool{}}
}

func (r *remote) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return
	}
	key := req.Header.Get("Idempotency-Key")
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests++
	fails := r.requests%5 == 0
	if (!fails || r.requests%10 == 0) && !r.applied[key] {
		r.applied[key] = true
		r.first <- string(body)
	}
	if fails {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}
