// Package value has handlers whose calls and keys differ from run to run.
package value

import (
	"bytes"
	"context"
	crand "crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/webhook"
)

func id(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	return outbox.Enqueue(ctx, tx, outbox.Call{Sink: "s", Name: "charge",
		ID: uuid.NewString(), // want `outbox.Call.ID comes from uuid.NewString: if the message is handled again, the call gets another key, and the remote applies it twice. Take it from the message, for example from its id.`
	})
}

func order(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	n := rand.IntN(16)
	key := fmt.Sprintf("lane-%d", n)
	return outbox.Enqueue(ctx, tx, outbox.Call{Sink: "s", Name: "charge",
		OrderingKey: key, // want `outbox.Call.OrderingKey comes from rand.IntN \(value.go:33\): if the message is handled again, the call is no longer in order with others about the same thing. Take it from the message.`
	})
}

type payload struct {
	Order string    `json:"order"`
	At    time.Time `json:"at"`
}

func body(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	p := payload{Order: m.ID()}
	p.At = time.Now()
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	call := outbox.Call{Sink: "s", Name: "charge"}
	call.Body = b // want `outbox.Call.Body comes from time.Now \(value.go:47\): if the message is handled again, it differs from the call that is stored, and Enqueue refuses it. Take it from the message, for example from its Time.`
	return outbox.Enqueue(ctx, tx, call)
}

type envelope struct{ Payload *payload }

func nested(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	b, err := json.Marshal([]envelope{{Payload: &payload{At: time.Now()}}})
	if err != nil {
		return err
	}
	return outbox.Enqueue(ctx, tx, outbox.Call{Sink: "s", Name: "charge", Body: b}) // want `outbox.Call.Body comes from time.Now`
}

func header(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	h := http.Header{}
	h.Set("Date", time.Now().UTC().Format(time.RFC1123))
	return outbox.EnqueueAll(ctx, tx,
		outbox.Call{Sink: "s", Name: "a", Header: h},                                                  // want `outbox.Call.Header comes from time.Now`
		outbox.Call{Sink: "s", Name: "b", Header: http.Header{"X-Request-Id": {uuid.New().String()}}}) // want `outbox.Call.Header comes from uuid.New:`
}

func set(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	call := outbox.Call{Sink: "s", Name: "a", Header: http.Header{}}
	call.Header.Set("Date", time.Now().String())
	return outbox.Enqueue(ctx, tx, call) // want `outbox.Call.Header comes from time.Now`
}

func newID() string { return "ch_" + strings.ToLower(crand.Text()) }

// A function of the package makes the value.
func helper(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	return outbox.Enqueue(ctx, tx, outbox.Call{Sink: "s", Name: "charge", Target: "/charges/" + newID()}) // want `outbox.Call.Target comes from rand.Text \(value.go:81\)`
}

func charge(at time.Time, id string) outbox.Call {
	return outbox.Call{Sink: "s", Name: "charge", ID: id, Body: fmt.Append(nil, at.Unix())}
}

// A function of the package makes the call.
func made(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	return outbox.Enqueue(ctx, tx, charge(time.Now(), m.ID())) // want `outbox.Call.Body comes from time.Now`
}

func filled(ctx context.Context, tx consumer.Tx, msgs []*consumer.Message) error {
	var id [8]byte
	if _, err := crand.Read(id[:]); err != nil {
		return err
	}
	nonce := make([]byte, 16)
	if _, err := io.ReadFull(crand.Reader, nonce); err != nil {
		return err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"at":%d}`, time.Now().UnixMilli())
	return outbox.Enqueue(ctx, tx, outbox.Call{Sink: "s",
		Name:   hex.EncodeToString(id[:]), // want `outbox.Call.Name comes from rand.Read`
		Target: string(nonce),             // want `outbox.Call.Target comes from rand.Reader`
		Body:   b.Bytes(),                 // want `outbox.Call.Body comes from time.Now`
	})
}

// In a literal, with variables of the function around it.
func captured(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	now := time.Now()
	return tx.Savepoint(ctx, func() error {
		return outbox.Enqueue(ctx, tx, outbox.Call{Sink: "s", Name: "charge", ID: now.String()}) // want `outbox.Call.ID comes from time.Now`
	})
}

// The call of a webhook.Forward or the like has no transaction at hand.
func forward(e *webhook.Event) outbox.Call {
	return outbox.Call{Sink: "s", Name: "forward", ID: uuid.NewString()} // want `outbox.Call.ID comes from uuid.NewString`
}

func once(ctx context.Context, pool *pgxpool.Pool, value []byte) (dedupe.Outcome, error) {
	key := dedupe.Key{
		Scope:       "stock",
		ID:          uuid.NewString(),                                  // want `dedupe.Key.ID comes from uuid.NewString: the next delivery claims another key, and the message is applied again. Take it from the message, for example from a header.`
		Fingerprint: dedupe.FingerprintOf([]byte(time.Now().String())), // want `dedupe.Key.Fingerprint comes from time.Now: the next delivery counts as another message under the same id, a conflict. Use dedupe.FingerprintOf of the payload.`
	}
	return dedupe.Do(ctx, pool, key, func(ctx context.Context, tx dedupe.GuardedTx) error { return nil })
}
