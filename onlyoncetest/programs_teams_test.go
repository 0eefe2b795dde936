package onlyoncetest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/onlyoncetest"
	"github.com/onlyonce/onlyonce/outbox"
)

// topicSink stands for kafkasink: it sends a record to a REST proxy in front of a topic.
type topicSink struct {
	p       *onlyoncetest.Process
	address string
}

func (*topicSink) Name() string { return "topics" }

func (*topicSink) Limits() outbox.Limits {
	return outbox.Limits{KeyWindow: time.Hour, Timeout: 2 * time.Second}
}

func (s *topicSink) Send(ctx context.Context, a *outbox.Attempt) outbox.Result {
	if err := a.MayStart(); err != nil {
		return outbox.Failure("not now", err)
	}
	if err := produce(ctx, s.p.HTTP, s.address+"/topics"+a.Target, a.Key, string(a.Body)); err != nil {
		return outbox.Failure("not produced", err)
	}
	return outbox.Result{Outcome: outbox.Delivered}
}

// produce posts one record.
func produce(ctx context.Context, client *http.Client, address, id, body string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader(body))
	if err != nil {
		return err
	}
	if id != "" {
		req.Header.Set("Idempotency-Key", id)
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, res.Body)
	return errors.Join(err, res.Body.Close())
}

// published is a case of a consumer whose events a relay sends to a topic.
func published(remote *onlyoncetest.Remote, event func(m *consumer.Message, o shopOrder) ([]byte, error)) onlyoncetest.Case {
	handler := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		o, err := orderOf(m)
		if err != nil {
			return err
		}
		if err := newShopQueries(tx).InsertOrder(ctx, o); err != nil {
			return err
		}
		body, err := event(m, o)
		if err != nil {
			return err
		}
		return outbox.Enqueue(ctx, tx, outbox.Call{
			Sink:        "topics",
			Name:        "order.placed",
			Target:      "/orders",
			OrderingKey: o.Customer,
			Body:        body,
		})
	}
	return onlyoncetest.Case{
		Migrate:  migrateShop,
		Messages: shopMessages(),
		Start: func(p *onlyoncetest.Process) (onlyoncetest.Runner, error) {
			run, err := consumer.New(p.Pool, p.Source(), consumer.HandlerFunc(handler), p.Tune(consumer.Config{}))
			if err != nil {
				return nil, err
			}
			relay, err := newRelay(p, &topicSink{p, p.Reach(remote)})
			return onlyoncetest.All(run, relay), err
		},
	}
}

// placed is the event of an order.
type placed struct {
	Event string   `json:"event"`
	Order string   `json:"order"`
	Lines []string `json:"lines"`
	At    string   `json:"at,omitempty"`
}

// placedOf is sound: the event's id is the message's.
func placedOf(m *consumer.Message, o shopOrder) ([]byte, error) {
	return json.Marshal(placed{Event: m.ID(), Order: o.ID, Lines: []string{fmt.Sprintf("%d %s", o.Qty, o.SKU)}})
}

// placedNow is a fault: another body at each attempt.
func placedNow(m *consumer.Message, o shopOrder) ([]byte, error) {
	return json.Marshal(placed{Event: m.ID(), Order: o.ID, At: time.Now().Format(time.RFC3339Nano)})
}

// placedOfMap is a fault: the lines come in the order of a map.
func placedOfMap(m *consumer.Message, o shopOrder) ([]byte, error) {
	parts := map[string]int{"box": 1, "card": 2, "label": 3, "leaflet": 4, "ribbon": 5, "tape": 6, o.SKU: o.Qty}
	e := placed{Event: m.ID(), Order: o.ID}
	for name := range maps.Keys(parts) {
		e.Lines = append(e.Lines, name)
	}
	return json.Marshal(e)
}

// checkout is a case of an HTTP route that reserves and charges in two steps.
func checkout(remote *onlyoncetest.Remote, besides func(ctx context.Context, p *onlyoncetest.Process) error) onlyoncetest.Case {
	c := serving(idempotency.Leased, func(p *onlyoncetest.Process) http.HandlerFunc {
		step := func(ctx context.Context, name string) error {
			_, err := idempotency.Step(ctx, name, func(ctx context.Context, key string) ([]byte, error) {
				return nil, produce(ctx, p.HTTP, p.Reach(remote)+"/"+name, key, name)
			})
			return err
		}
		return func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err == nil {
				err = step(r.Context(), "reserve")
			}
			if err == nil {
				err = step(r.Context(), "charge")
			}
			if err == nil && besides != nil {
				err = besides(r.Context(), p)
			}
			tx, failed := idempotency.TxOf(r)
			if err = errors.Join(err, failed); err == nil {
				_, err = tx.Exec(r.Context(), `insert into payments values ($1, 'charged')`, string(body))
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			w.WriteHeader(http.StatusCreated)
		}
	})
	c.Migrate = migrateShop
	return c
}

// inBasket is sound: a trigger notes when the basket has changed.
func inBasket(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	o, err := orderOf(m)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `insert into baskets (customer, qty) values ($1, $2)
		on conflict (customer) do update set qty = baskets.qty + excluded.qty`, o.Customer, o.Qty)
	return err
}

// seenNow is sound: the statement notes when the message was handled.
func seenNow(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	_, err := tx.Exec(ctx, `insert into visits (message, seen_at) values ($1, now())`, m.ID())
	return err
}

// seenByClock is sound: the program's clock notes the same.
func seenByClock(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	_, err := tx.Exec(ctx, `insert into visits (message, seen_at) values ($1, $2)`, m.ID(), time.Now())
	return err
}

// basketsByPool is a fault: what fires the trigger is committed for each attempt.
func basketsByPool(p *onlyoncetest.Process) consumer.HandlerFunc {
	return func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		o, err := orderOf(m)
		if err != nil {
			return err
		}
		if _, err := p.Pool.Exec(ctx, `insert into baskets (customer, qty) values ($1, $2)
			on conflict (customer) do update set qty = baskets.qty + excluded.qty`, o.Customer, o.Qty); err != nil {
			return err
		}
		return newShopQueries(tx).InsertAudit(ctx, o.ID)
	}
}

// redeems is sound: a lock, a row that is taken for update, and a setting for the transaction.
func redeems(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	o, err := orderOf(m)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock(hashtext($1))`, o.Customer); err != nil {
		return err
	}
	var code string
	err = tx.QueryRow(
		ctx,
		`update vouchers set used_by = $1
		where code = (select code from vouchers where used_by is null order by code limit 1 for update skip locked) returning code`,
		o.ID,
	).Scan(&code)
	if errors.Is(err, pgx.ErrNoRows) {
		return consumer.Permanent(err)
	}
	return err
}

// batched is a case of a handler of batches.
func batched(handle consumer.BatchHandlerFunc) onlyoncetest.Case {
	return onlyoncetest.Case{
		Migrate:  migrateShop,
		Messages: shopMessages(),
		Start: func(p *onlyoncetest.Process) (onlyoncetest.Runner, error) {
			return consumer.New(p.Pool, p.Source(), handle, p.Tune(consumer.Config{BatchSize: 4}))
		},
	}
}

// inOneBatch is sound: all statements of a batch in one round trip.
func inOneBatch(ctx context.Context, tx consumer.Tx, ms []*consumer.Message) error {
	var b pgx.Batch
	for _, m := range ms {
		o, err := orderOf(m)
		if err != nil {
			return err
		}
		b.Queue(`insert into orders (id, status, total) values ($1, 'placed', $2)`, o.ID, o.Qty)
		b.Queue(`update totals set held = (held::int + $1)::text where sku = 'all'`, o.Qty)
	}
	return tx.SendBatch(ctx, &b).Close()
}

// onePerBatch is a fault: what it writes depends on which messages came together.
func onePerBatch(ctx context.Context, tx consumer.Tx, ms []*consumer.Message) error {
	sum := 0
	for _, m := range ms {
		o, err := orderOf(m)
		if err != nil {
			return err
		}
		sum += o.Qty
	}
	_, err := tx.Exec(ctx, `insert into audit values ($1)`, fmt.Sprint(sum))
	return err
}

func morePrograms(t *testing.T) []program {
	t.Helper()
	remote := onlyoncetest.NewRemote(t, onlyoncetest.RemoteOptions{})
	mail := func(ctx context.Context, p *onlyoncetest.Process) error {
		return produce(ctx, p.HTTP, p.Reach(remote)+"/mails", "", "thank you")
	}
	dated := shop(consumer.Config{}, always(inBasket))
	dated.Migrate = func(ctx context.Context, pool *pgxpool.Pool) error {
		_, err := pool.Exec(ctx, shopSchema+`; insert into baskets (customer, qty) values ('ann', 1)`)
		return err
	}
	return []program{
		{name: "outbox to a topic", c: published(remote, placedOf)},
		{
			name:   "outbox to a topic, time in the event",
			first:  kindNotDeterministic,
			faulty: true,
			kind:   []string{kindNotDeterministic},
			c:      published(remote, placedNow),
		},
		{
			name:   "outbox to a topic, lines of a map",
			first:  kindNotDeterministic,
			faulty: true,
			kind:   []string{kindNotDeterministic},
			c:      published(remote, placedOfMap),
		},
		{name: "HTTP, two steps", c: checkout(remote, nil)},
		{
			name:   "HTTP, mail beside the steps",
			first:  kindCalledOutside,
			faulty: true,
			kind:   []string{kindCalledOutside},
			c:      checkout(remote, mail),
		},
		{name: "trigger sets updated_at", first: kindNotDeterministic, c: dated},
		{
			name:   "trigger fired by the pool",
			first:  kindWrittenOutside,
			faulty: true,
			kind:   []string{kindWrittenOutside},
			c:      shop(consumer.Config{}, basketsByPool),
		},
		{name: "now() in the statement", first: kindNotDeterministic, c: shop(consumer.Config{}, always(seenNow))},
		{name: "the program's clock in a row", first: kindNotDeterministic, c: shop(consumer.Config{}, always(seenByClock))},
		{name: "voucher for update", c: shop(consumer.Config{BatchSize: 1}, always(redeems))},
		{name: "a batch in one round trip", c: batched(inOneBatch)},
		{
			name:   "a row for each batch",
			first:  kindEffectsDiffer,
			faulty: true,
			kind:   []string{kindEffectsDiffer, kindNotDeterministic},
			c:      batched(onePerBatch),
		},
	}
}
