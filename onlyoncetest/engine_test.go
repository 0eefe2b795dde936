package onlyoncetest_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/onlyoncetest"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// Sound programs come through every single fault. If the engine lacks one of its rules, they do
// not: this test judges the engine, and test/mutants/kit.go has the rules that it misses.
//
// There are some 900 histories, most of them crashes. One crash of three is played, and all of them
// by make kit and for mutants.
func TestSoundProgramAtEveryPoint(t *testing.T) {
	was := flag.Lookup("onlyonce.budget").Value.String()
	if err := flag.Set("onlyonce.budget", "0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = flag.Set("onlyonce.budget", was) })
	for _, p := range programs() {
		t.Run(p.name, func(t *testing.T) {
			if !pgtest.Long(t.Name()) {
				t.Skip("a long case")
			}
			t.Parallel()
			defer enter()()
			if os.Getenv("ONLYONCE_TEST_CRASHES") != "all" {
				onlyoncetest.Crashes(&p.c, 3)
			}
			rep := onlyoncetest.Run(t, p.c)
			if rep.Left != 0 {
				t.Errorf("%d faults were not played", rep.Left)
			}
		})
	}
}

// programs are sound, and use what the engine promises: each of them depends on other rules.
func programs() []judged {
	handle := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if err := sound(ctx, tx, m); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `update totals set n = n + 1`); err != nil {
			return err
		}
		for _, id := range []string{"first", "second"} { // calls are told apart by their ids
			c := call(m.Value)
			c.ID = id
			if err := outbox.Enqueue(ctx, tx, c); err != nil {
				return err
			}
		}
		return nil
	}
	of := func(cfg consumer.Config) onlyoncetest.Case {
		return onlyoncetest.Case{Migrate: migrate, Messages: three(), Start: onlyoncetest.Consume(consumer.HandlerFunc(handle), cfg)}
	}
	return []judged{
		{name: "ids", c: of(consumer.Config{BatchSize: 2})},
		// Without ids only the fence keeps a batch from being applied twice.
		{name: "positions", c: of(consumer.Config{BatchSize: 2, PositionsOnly: true})},
		// Several transactions at once, each with a fence of its own.
		{
			name: "slots",
			c: onlyoncetest.Case{
				Migrate:  migrate,
				Messages: three(),
				Start: onlyoncetest.Consume(consumer.HandlerFunc(sound), consumer.Config{
					BatchSize:     1,
					PositionsOnly: true,
					Concurrency:   3,
				}),
			},
		},
		// A batch handler counts its messages: a copy among them would be one too many.
		{name: "batches", c: batch(func(*onlyoncetest.Process) consumer.BatchHandlerFunc {
			return func(ctx context.Context, tx consumer.Tx, msgs []*consumer.Message) error {
				_, err := tx.Exec(ctx, `update totals set n = n + $1`, len(msgs))
				return err
			}
		})},
		{name: "refusals", c: refusing()},
		{name: "retries", c: retrying()},
		{name: "http", c: serving(idempotency.Transactional, func(*onlyoncetest.Process) http.HandlerFunc { return numbered })},
	}
}

// refusing returns a case in which one of three messages is parked.
func refusing() onlyoncetest.Case {
	return with(func(*onlyoncetest.Process) consumer.HandlerFunc {
		return func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			if string(m.Value) == "1" {
				return consumer.Permanent(errors.New("no such order"))
			}
			return sound(ctx, tx, m)
		}
	})
}

// retrying returns a case whose first message fails in its batch and alone, in each process, and so
// is parked. It is tried again from the database while the next one of its key waits for it.
func retrying() onlyoncetest.Case {
	return onlyoncetest.Case{Migrate: migrate, Messages: three(), Start: func(p *onlyoncetest.Process) (onlyoncetest.Runner, error) {
		failed := 0
		cfg := p.Tune(consumer.Config{BatchSize: 2, OnFailure: consumer.ParkOrderingKey})
		return consumer.New(p.Pool, p.Source(), consumer.HandlerFunc(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
			if string(m.Value) == "0" && failed < 2 {
				failed++
				return errors.New("not yet")
			}
			return sound(ctx, tx, m)
		}), cfg)
	}}
}

// numbered answers with the number of the row that it has inserted: an answer whose transaction did
// not commit is not the answer of the next attempt.
func numbered(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var id int64
	if err == nil {
		var tx consumer.Tx
		if tx, err = idempotency.TxOf(r); err == nil {
			err = tx.QueryRow(r.Context(), `insert into effects (value) values ($1) returning id`, string(body)).Scan(&id)
		}
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusCreated)
	_, _ = fmt.Fprintf(w, `{"id":%d}`, id)
}

// A sound program with a relay, and one with a step, come through the faults around their requests,
// which are the first that are played.
func TestSoundProgramWithRemote(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]func(r *onlyoncetest.Remote) onlyoncetest.Case{"relay": relaying, "step": stepping} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer enter()()
			remote := onlyoncetest.NewRemote(t, onlyoncetest.RemoteOptions{})
			onlyoncetest.Run(t, c(remote))
		})
	}
}

// relaying returns a case in which a relay makes one call for each of two messages.
func relaying(r *onlyoncetest.Remote) onlyoncetest.Case {
	c := sending(func(p *onlyoncetest.Process) (outbox.Sink, error) {
		return httpsink.New(httpsink.Config{Name: "mail", BaseURL: p.Reach(r), KeyWindow: time.Hour, AllowPrivate: true})
	})
	c.Messages = c.Messages[:2]
	return c
}

// stepping returns a case in which a request has one step: a call with a key, whose result is kept.
func stepping(r *onlyoncetest.Remote) onlyoncetest.Case {
	return serving(idempotency.Leased, func(p *onlyoncetest.Process) http.HandlerFunc {
		return charge(func(req *http.Request) error {
			_, err := idempotency.Step(req.Context(), "pay", func(ctx context.Context, key string) ([]byte, error) {
				out, err := http.NewRequestWithContext(ctx, http.MethodPost, p.Reach(r), strings.NewReader("pay"))
				if err != nil {
					return nil, err
				}
				out.Header.Set("Idempotency-Key", key)
				res, err := p.HTTP.Do(out)
				if err != nil {
					return nil, err
				}
				return []byte("paid"), res.Body.Close()
			})
			return err
		})
	})
}
