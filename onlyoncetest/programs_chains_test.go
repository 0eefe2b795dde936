package onlyoncetest_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/onlyoncetest"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
	"github.com/onlyonce/onlyonce/queue"
)

// chained is a case of a queue, a consumer of its messages, and a relay that sends their calls.
func chained(remote *onlyoncetest.Remote, identify func(*queue.Delivery) error, h consumer.HandlerFunc) onlyoncetest.Case {
	return onlyoncetest.Case{
		Migrate:  migrateShop,
		Messages: shopMessages(),
		Start: func(p *onlyoncetest.Process) (onlyoncetest.Runner, error) {
			q, err := queue.New(p.Pool, p.Broker("messages"), queue.Config{Name: "orders", CopiesWithin: time.Hour, Identify: identify,
				PollInterval: 20 * time.Millisecond})
			if err != nil {
				return nil, err
			}
			run, err := consumer.New(p.Pool, q, h, p.Tune(consumer.Config{}))
			if err != nil || remote == nil {
				return run, err
			}
			relay, err := relayTo(p, remote, nil)
			return onlyoncetest.All(run, relay), err
		},
	}
}

// relayTo returns a relay of the sink "mail".
func relayTo(p *onlyoncetest.Process, remote *onlyoncetest.Remote,
	complete func(context.Context, dedupe.GuardedTx, *outbox.Attempt, *outbox.Response) error,
) (*outbox.Relay, error) {
	s, err := httpsink.New(httpsink.Config{Name: "mail", BaseURL: p.Reach(remote), KeyWindow: time.Hour, AllowPrivate: true})
	if err != nil {
		return nil, err
	}
	return outbox.NewRelay(p.Pool, outbox.RelayConfig{Sinks: []outbox.Sink{s}, Complete: complete, PollInterval: 20 * time.Millisecond,
		LeaseTTL: 4 * time.Second, Backoff: dedupe.Backoff{Min: time.Millisecond, Max: 10 * time.Millisecond}})
}

// mails enqueues a mail for each message.
func mails(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	return outbox.Enqueue(ctx, tx, outbox.Call{Sink: "mail", Name: "send", Body: m.Value, OrderingKey: m.ID()})
}

// mailsWithRandomID is a fault: another call at each attempt.
func mailsWithRandomID(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	return outbox.Enqueue(ctx, tx, outbox.Call{Sink: "mail", Name: "send", ID: uuid.NewString(), Body: m.Value})
}

// paid is a case whose relay stores the provider's id of each payment.
func paid(remote *onlyoncetest.Remote) onlyoncetest.Case {
	handler := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		o, err := orderOf(m)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `insert into orders (id, status) values ($1, 'placed')`, o.ID); err != nil {
			return err
		}
		return outbox.Enqueue(ctx, tx, outbox.Call{Sink: "mail", Name: "pay", Body: []byte(o.ID), Capture: true})
	}
	complete := func(ctx context.Context, tx dedupe.GuardedTx, a *outbox.Attempt, answer *outbox.Response) error {
		var payment struct {
			ID json.RawMessage `json:"id"`
		}
		if err := json.Unmarshal(answer.Body, &payment); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `update orders set payment_id = $1, status = 'paid' where id = $2`, string(payment.ID), string(a.Body))
		return err
	}
	return onlyoncetest.Case{
		Migrate:  migrateShop,
		Messages: shopMessages(),
		Start: func(p *onlyoncetest.Process) (onlyoncetest.Runner, error) {
			run, err := consumer.New(p.Pool, p.Source(), consumer.HandlerFunc(handler), p.Tune(consumer.Config{}))
			if err != nil {
				return nil, err
			}
			relay, err := relayTo(p, remote, complete)
			return onlyoncetest.All(run, relay), err
		},
	}
}

// charges is a case of an HTTP route that pays in a step, under a key of key's.
func charges(remote *onlyoncetest.Remote, key func(step string) string) onlyoncetest.Case {
	c := serving(idempotency.Leased, func(p *onlyoncetest.Process) http.HandlerFunc {
		pay := func(ctx context.Context, step string) ([]byte, error) {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.Reach(remote)+"/charges", strings.NewReader("5"))
			if err != nil {
				return nil, err
			}
			req.Header.Set("Idempotency-Key", key(step))
			res, err := p.HTTP.Do(req)
			if err != nil {
				return nil, err
			}
			defer func() { _ = res.Body.Close() }()
			return io.ReadAll(res.Body)
		}
		return func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			answer, err := idempotency.Step(r.Context(), "charge", pay)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadGateway)
				return
			}
			tx, err := idempotency.TxOf(r)
			if err == nil {
				_, err = tx.Exec(r.Context(), `insert into payments values ($1, $2)`, string(body), string(answer))
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write(answer)
		}
	})
	c.Migrate = migrateShop
	return c
}

// hooked is a case of a webhook endpoint that stores its events, a consumer that enqueues a call
// for each, and a relay.
func hooked(remote *onlyoncetest.Remote, h consumer.HandlerFunc) onlyoncetest.Case {
	c := stored(func(*onlyoncetest.Process) consumer.HandlerFunc { return h })
	serve := c.Serve
	c.Migrate = migrateShop
	c.Serve = func(p *onlyoncetest.Process) (http.Handler, onlyoncetest.Runner, error) {
		endpoint, run, err := serve(p)
		if err != nil {
			return nil, nil, err
		}
		relay, err := relayTo(p, remote, nil)
		return endpoint, onlyoncetest.All(run, relay), err
	}
	return c
}

// byOrder is a fault: two shipments of one order are one message.
func byOrder(d *queue.Delivery) error {
	var o struct {
		ID string `json:"id"`
	}
	err := json.Unmarshal(d.Body, &o)
	d.ID = o.ID
	return err
}

func chainPrograms(t *testing.T) []program {
	t.Helper()
	remote := onlyoncetest.NewRemote(t, onlyoncetest.RemoteOptions{})
	shipments := chained(nil, byOrder, inAudit)
	shipments.Messages = []onlyoncetest.Message{
		{ID: "s-0", Value: `{"id":"o-0","qty":1}`}, {ID: "s-1", Value: `{"id":"o-1","qty":1}`}, {ID: "s-2", Value: `{"id":"o-0","qty":2}`},
	}
	byShipment := chained(nil, nil, inAudit)
	byShipment.Messages = shipments.Messages
	return []program{
		{name: "queue, outbox, relay", first: kindNotDeterministic, c: chained(remote, nil, mails)},
		{
			name:   "queue, outbox with a random id",
			first:  kindNotDeterministic,
			faulty: true,
			kind:   []string{kindNotDeterministic},
			c:      chained(remote, nil, mailsWithRandomID),
		},
		{name: "webhook, events, relay", first: kindNotDeterministic, c: hooked(remote, mails)},
		{
			name:   "webhook, call with a random id",
			first:  kindNotDeterministic,
			faulty: true,
			kind:   []string{kindNotDeterministic},
			c:      hooked(remote, mailsWithRandomID),
		},
		{name: "provider's id by Complete", first: kindNotDeterministic, c: paid(remote)},
		{name: "provider's id by a step", first: kindNotDeterministic, c: charges(remote, func(step string) string { return step })},
		{
			name:   "random key in a step",
			first:  kindNotDeterministic,
			faulty: true,
			kind:   []string{kindNotDeterministic},
			c:      charges(remote, func(string) string { return uuid.NewString() }),
		},
		{name: "queue, id of the order", faulty: true, kind: []string{kindParkedWrongly}, c: shipments},
		{name: "queue, id of the shipment", c: byShipment},
	}
}

func inAudit(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	_, err := tx.Exec(ctx, `insert into audit values ($1)`, string(m.Value))
	return err
}
