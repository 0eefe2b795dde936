package webhook_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/eventsource"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/shard"
	"github.com/onlyonce/onlyonce/webhook"
)

// W9: the claim alone waits for a short time. An event that waits for another transaction of its
// partition is stored once that has ended.
func TestW9OnlyTheClaimIsImpatient(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	e := r.serve(samples(t)["Stripe"], func(c *webhook.Config) { c.OrderingKey = func(*webhook.Event) string { return "k" } })
	e.send(stripeBody("evt_0", "")).want(t, 200, false)
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := eventsource.Append(t.Context(), tx, eventsource.Event{Topic: webhook.Topic("e"), ID: "other", Key: []byte("k")}); err != nil {
		t.Fatal(err)
	}
	answered := make(chan answer, 1)
	go func() { answered <- e.send(stripeBody("evt_1", "")) }()
	r.until("the event has waited for longer than a claim does", func() bool {
		return len(answered) > 0 ||
			one[bool](r, `select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'
			and clock_timestamp() - query_start > interval '150 milliseconds')`)
	})
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	(<-answered).want(t, 200, false)
}

// W9: a copy of an event that another process has not committed yet is tried again, and is answered
// as a copy once it is; if that takes too long, the sender is to send it again.
func TestW9CopyIsTriedAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	e := r.serve(samples(t)["Stripe"], func(c *webhook.Config) { c.DuplicateWait = 2 * time.Second })
	impatient := r.serve(samples(t)["Stripe"], func(c *webhook.Config) { c.DuplicateWait = time.Millisecond })
	e.send(stripeBody("evt_0", "")).want(t, 200, false)
	for i := 1; ; i++ {
		id := fmt.Sprint("evt_", i)
		body := stripeBody(id, "")
		tx, err := r.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r.claims(tx, "e/stripe/"+id, body)
		if i == 1 {
			before := r.asked.Load()
			impatient.send(body).want(t, http.StatusServiceUnavailable, false)
			if err := r.lastRefusal(); !errors.Is(err, webhook.ErrPending) {
				t.Errorf("refused with %v", err)
			}
			if n := r.asked.Load() - before; n > 20 { // of one try, and not of all until the sender's deadline
				t.Errorf("the database was asked %d times", n)
			}
		}
		before := r.asked.Load()
		answered := make(chan answer, 1)
		go func() { answered <- e.send(body) }()
		r.until("it is tried several times, or answered", func() bool { return r.asked.Load()-before > 20 || len(answered) > 0 })
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		a := <-answered
		if a.status == http.StatusServiceUnavailable && i < 5 { // a slow machine: its wait was over
			continue
		}
		a.want(t, 200, true)
		return
	}
}

// claims claims an id of endpoint e, as another process does that has not committed yet.
func (r *rig) claims(tx pgx.Tx, id, body string) {
	r.t.Helper()
	var found []int16
	err := tx.QueryRow(
		r.t.Context(),
		`select onlyonce.receive_webhooks('e', array[onlyonce.key('', 'webhook/e', $1)], array[$2::bigint], null, null, null, null, null,
			'1h', null, '1000', '1000', '0', '0')`,
		id,
		dedupe.FingerprintOf([]byte(body)).Int64(),
	).Scan(&found)
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := tx.Exec(r.t.Context(), `select onlyonce.seal()`); err != nil {
		r.t.Fatal(err)
	}
}

// N2: if the place of one event of a set leaves the database, its sender gets 503, and the other
// events are stored.
func TestN2PlaceThatLeavesInASet(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	set, err := shard.New(shard.Config{Pools: map[string]*pgxpool.Pool{"a": r.recv}, OfPlace: func(string) string { return "a" }})
	if err != nil {
		t.Fatal(err)
	}
	s := samples(t)["Stripe"]
	endpoint, err := webhook.NewSharded(set, webhook.Config{
		Name:       "e",
		Provider:   s.provider,
		Secrets:    []string{s.secret},
		Partitions: 4,
		Hooks:      r.hooks(),
		Tenant:     func(e *webhook.Event) string { return strings.Split(e.ID, "_")[0] },
	})
	if err != nil {
		t.Fatal(err)
	}
	e := r.serveMux(s, endpoint, "")
	e.send(stripeBody("leaves_0", "")).want(t, 200, false)
	if _, err := ops.LeavePlace(t.Context(), r.pool, ops.By{Reason: "OPS-40"}, ops.LeavePlaceInput{Place: "leaves", To: "b"}); err != nil {
		t.Fatal(err)
	}
	var sending sync.WaitGroup
	for i := range 24 {
		sending.Go(func() {
			if i%4 == 1 {
				e.send(stripeBody(fmt.Sprint("leaves_", i), "")).want(t, http.StatusServiceUnavailable, false)
			} else {
				e.send(stripeBody(fmt.Sprint("stays_", i), "")).want(t, 200, false)
			}
		})
	}
	sending.Wait()
}
