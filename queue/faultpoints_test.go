package queue_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

const childDB = "ONLYONCE_TEST_CHILD_DB"

// table is a broker in a table, which outlives the processes that receive from it. A message that
// is not acknowledged is delivered again to each session.
type table struct {
	pool *pgxpool.Pool
	seen int64
}

func (b *table) Begin(context.Context, bool) error {
	b.seen = 0
	return nil
}

func (b *table) Receive(ctx context.Context, most int) ([]*queue.Delivery, error) {
	rows, err := b.pool.Query(ctx, `select n, id from broker where n > $1 order by n limit $2`, b.seen, most)
	if err != nil {
		return nil, nil //nolint:nilerr // ctx has ended
	}
	all, _ := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*queue.Delivery, error) {
		var id string
		err := row.Scan(&b.seen, &id)
		return &queue.Delivery{ID: id, Body: []byte(id), Handle: b.seen}, err
	})
	if len(all) == 0 {
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
	return all, nil
}

// Ack deletes messages, and ends the process if a claim is not committed.
func (b *table) Ack(ctx context.Context, all []*queue.Delivery) error {
	for _, d := range all {
		tag, err := b.pool.Exec(
			ctx,
			`delete from broker where n = $1 and exists (select from onlyonce.inbox where key = onlyonce.key('', 'queue/q', $2))`,
			d.Handle,
			d.ID,
		)
		if err != nil {
			return err
		}
		if tag.RowsAffected() != 1 {
			fmt.Fprintf(os.Stderr, "%s was acknowledged, and its claim is not committed\n", d.ID)
			os.Exit(4)
		}
	}
	return nil
}

// child receives until its standard input ends.
func child(url string) error {
	struck, err := pgtest.StruckPool(context.Background(), url)
	if err != nil {
		return err
	}
	own, err := pgxpool.New(context.Background(), url)
	if err != nil {
		return err
	}
	q, err := queue.New(struck, &table{pool: own}, queue.Config{Name: "q", CopiesWithin: time.Hour, Partitions: 4, Batch: 2})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, bufio.NewReader(os.Stdin))
		stop()
	}()
	return q.Receive(ctx)
}

// points are the statements before and after which a receiver fails: see pgtest.StruckPool.
var points = []string{
	`before onlyonce.claim`,            // nothing is asked of the database
	`after onlyonce.claim`,             // the ids are claimed, nothing is committed
	`before onlyonce.seal`,             // all is done, COMMIT not sent
	`after onlyonce.seal\(\); commit;`, // COMMIT answered, nothing acknowledged
}

// Every point times kill, error and hang: the process dies at the point, its connection breaks, or
// the statement hangs. No message is acknowledged whose claim is not committed, none is lost, and
// each is stored once (Q1).
func TestQ1FaultPoints(t *testing.T) {
	for _, action := range []string{"kill", "error", "hang"} {
		for _, point := range points {
			t.Run(point+"="+action, func(t *testing.T) {
				t.Parallel()
				r := newRig(t)
				r.exec(`create table broker (n bigserial primary key, id text)`)
				r.exec(`insert into broker (id) select 'm' || i from generate_series(1, 9) i`)
				fault := []string{"ONLYONCE_FAULT=" + point + "=" + action + "@2", "ONLYONCE_FAULT_HANG=500ms"}
				for struck := false; ; fault = nil {
					var said strings.Builder
					p := exec.Command(os.Args[0])
					p.Env = append(append(os.Environ(), childDB+"="+r.pool.Config().ConnString()), fault...)
					p.Stderr = &said
					stdin, err := p.StdinPipe()
					if err != nil {
						t.Fatal(err)
					}
					if err := p.Start(); err != nil {
						t.Fatal(err)
					}
					exited := make(chan error, 1)
					go func() { exited <- p.Wait() }()
					var ended bool
					r.until("all are acknowledged, or the receiver is dead", func() bool {
						select {
						case err = <-exited:
							ended = true
						default:
						}
						return ended || r.count("broker") == 0
					})
					if !ended {
						stdin.Close()
						err = pgtest.Receive(t, patience, "the end of the receiver", exited)
					}
					struck = struck || strings.Contains(said.String(), "fault: ")
					var exit *exec.ExitError
					wrong := errors.As(err, &exit) && exit.ExitCode() != -1 ||
						!ended && err != nil
					if wrong {
						t.Fatalf("the receiver ended with %v: %s", err, &said)
					}
					if r.count("broker") == 0 {
						if !struck {
							t.Errorf("the fault never came: %s", &said)
						}
						break
					}
				}
				if got := one[string](
					r,
					`select string_agg(id, ' ' order by id) from onlyonce.event_log`,
				); got != "m1 m2 m3 m4 m5 m6 m7 m8 m9" ||
					r.count("onlyonce.parked") != 0 {
					t.Errorf("stored: %s; %d are parked", got, r.count("onlyonce.parked"))
				}
			})
		}
	}
}

// The answer to COMMIT never arrives: the receiver does the same again on another connection, and
// so finds out the outcome (Q1, T4).
func TestQ1LostCommit(t *testing.T) {
	t.Parallel()
	for _, how := range []pgtest.Cut{pgtest.Unsent, pgtest.Unheard} {
		r := newRig(t)
		var armed atomic.Bool
		w := &pgtest.Wire{Statement: "commit", At: func(int32) pgtest.Cut {
			if armed.Swap(false) {
				return how
			}
			return pgtest.Pass
		}}
		pool := pgtest.Wired(t, r.pool, pgx.QueryExecModeExec, w, nil)
		q := r.queue(pool, r.broker.Connect())
		stop := r.runs(q.Receive)
		r.broker.Publish(message("first"))
		r.until("the first one is stored", func() bool { return r.broker.Left() == 0 })
		armed.Store(true)
		r.broker.Publish(message("lost"), message("first"), queue.Delivery{Body: []byte("without an id")})
		r.until("the second batch is acknowledged", func() bool { return r.broker.Left() == 0 })
		if n := w.Cuts.Load(); n != 1 {
			t.Errorf("%d connections were cut", n)
		}
		stored := r.count("onlyonce.event_log")
		kept := r.count("onlyonce.parked")
		if stored != 2 || kept != 1 {
			t.Errorf("%v: %d are stored and %d parked, want 2 and 1", how, stored, kept)
		}
		if got := r.stored(); got.Fresh != 2 {
			t.Errorf("%v: %+v, want two fresh messages: the copy of the first one is none", how, got)
		}
		stop() // before the pool
	}
}

// The rows of the fault matrix in docs/faults.md that this package answers for, and the test of
// each.
func TestFaultMatrix(t *testing.T) {
	t.Parallel()
	pgtest.FaultMatrix(t, "queue", map[string]string{
		"crash before COMMIT":                "TestQ1FaultPoints",
		"crash after COMMIT":                 "TestQ1FaultPoints",
		"answer to COMMIT lost":              "TestQ1LostCommit",
		"acknowledgements lost":              "TestBrokerThatAcknowledgesNothing",
		"broker away":                        "TestBrokerAway",
		"store down":                         "TestQ3DatabaseAway",
		"store's address leads to a standby": "TestT12SwitchoverOfAReceiver",
		"store out of reach of one process":  "TestQ5ReceiverWithoutADatabase",
		"everything is refused":              "TestQ7EverythingFails",
		"the broker delivers all anew":       "TestQ6DeliveredAnew",
		"lease lost":                         "TestQ5Ordered",
		"no id":                              "TestQ2Parked",
		"body too large":                     "TestLargeMessages",
		"refused by the database":            "TestQ4RefusedByTheDatabase",
		"copy is uncommitted elsewhere":      "TestQ4CopyThatWaitsHoldsUpNoOther",
		"broker that would lose messages":    "TestQ6Horizon",
	})
}
