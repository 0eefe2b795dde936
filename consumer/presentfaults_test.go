package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/dedupe"
)

// A process writes what keeps it from its work into its row, and takes it out when it is over. What
// a handler says, which may quote the message, is not in it.
func TestS3PresentFaults(t *testing.T) {
	t.Parallel()
	const secret = "card 4242"
	r := newRig(t, 2)
	for p := range int32(2) {
		r.log.Append(p, "v", id("first"))
	}
	var away, fails atomic.Pointer[error]
	failing := func(of *atomic.Pointer[error]) error {
		if err := of.Load(); err != nil {
			return *err
		}
		return nil
	}
	r.src.OnFetch = func(int32, int64) error { return failing(&away) }
	src := &joining{Source: r.src}
	cfg := testConfig()
	cfg.MaxAttempts = 1 << 30
	cfg.Backoff.Max = 100 * time.Millisecond
	cfg.Timeouts = dedupe.Timeouts{Lock: time.Second, Statement: time.Second}
	handle := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if err := failing(&fails); err != nil {
			return err
		}
		return effect(ctx, tx, m)
	}
	c, err := consumer.New(r.pool, src, consumer.HandlerFunc(handle), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(apart(ctx)) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	// reports waits until the row has these faults: how each begins, and how its text ends.
	reports := func(what string, want ...string) {
		t.Helper()
		var got []string
		until(t, what, func() bool {
			rows, err := r.pool.Query(
				t.Context(),
				`
select concat_ws(
  ' ',
  f ->> 'kind',
  f ->> 'topic',
  f ->> 'partitions',
  f ->> 'text'
) from onlyonce.owners, jsonb_array_elements(faults) f where scope = 'stock'`,
			)
			if err != nil {
				t.Fatal(err)
			}
			got = nil
			for rows.Next() {
				var s string
				if err := rows.Scan(&s); err != nil {
					t.Fatal(err)
				}
				got = append(got, s)
			}
			if strings.Contains(strings.Join(got, "\n"), secret) {
				t.Fatalf("a handler's words: %q", got)
			}
			if len(got) != len(want) {
				return false
			}
			for i := range want {
				if kind, text, _ := strings.Cut(want[i], ": "); !strings.HasPrefix(got[i], kind) || !strings.HasSuffix(got[i], text) {
					return false
				}
			}
			return true
		})
	}
	reports("it is no member", "group: no coordinator")
	until(t, "Healthy says so", func() bool {
		err := c.Healthy()
		return err != nil && strings.Contains(err.Error(), "no coordinator")
	})
	src.member.Store(true)
	reports("it is one now")

	silent := errors.New("no broker answers")
	gone := fmt.Errorf("asking: %w", source.ErrNoTopic)
	away.Store(&silent)
	reports("nothing can be read", "read orders 2: no broker answers")
	src.member.Store(false)
	reports("both", "group: no coordinator", "read orders 2: no broker answers")
	away.Store(&gone)
	reports("the topic is gone", "group: no coordinator", "topic orders 2: consumer/source: the topic does not exist")
	away.Store(nil)
	src.member.Store(true)
	reports("all is well again")

	var refused error = &pgconn.PgError{Code: "P0001", Message: secret}
	for text, err := range map[string]error{"SQLSTATE P0001": refused, "the log of the process says why": errors.New(secret)} {
		fails.Store(&err)
		for p := range int32(2) {
			r.log.Append(p, "v", id(fmt.Sprint(text, p)))
		}
		reports(text, "apply orders 2: "+text)
		fails.Store(nil)
		reports("applied")
	}
}
