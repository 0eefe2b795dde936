package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/seal"
)

// ErrSealed means that the body of a stored event is sealed, and that the handler has no Sealer
// that opens it: see [Unsealed]. The event is parked. Redrive it when the encryption key is there.
var ErrSealed = errors.New("consumer: the event is sealed, and no Sealer with its key was given")

// Unsealed returns a handler that opens the stored events of a webhook.Endpoint or a queue.Queue
// with a Sealer (their Config.Sealer), and then calls h. An Endpoint does it for its Handler. An
// event that does not open fails with [ErrSealed], and h is not called. If s is nil, that is every
// sealed event (W22).
//
// If h is a [BatchHandler], so is the handler.
func Unsealed(h Handler, s *seal.Sealer) Handler {
	one := unsealed{h, s}
	if batch, ok := h.(BatchHandler); ok {
		return unsealedBatch{one, batch}
	}
	return one
}

type unsealed struct {
	next   Handler
	sealer *seal.Sealer // nil: no sealed event opens
}

// Validate returns the faults of the handler below.
func (u unsealed) Validate() error {
	l := fields.List{}
	l.Part("Unsealed", u.next)
	return l.Err()
}

// Handle implements Handler.
func (u unsealed) Handle(ctx context.Context, tx Tx, m *Message) error {
	open, err := u.open(m)
	if err != nil {
		return err
	}
	return u.next.Handle(ctx, tx, open)
}

// open returns a message with its body open: m itself, or a copy, because what is parked stays
// sealed.
func (u unsealed) open(m *Message) (*Message, error) {
	at := slices.IndexFunc(m.Headers, func(h Header) bool { return h.Name == parked.HeaderSealed })
	if at < 0 {
		return m, nil
	}
	if u.sealer == nil {
		return nil, Permanent(ErrSealed)
	}
	body, err := u.sealer.Open(parked.EventPlace(m.Tenant(), m.Topic, m.ID()), m.Value)
	if err != nil {
		return nil, Permanent(fmt.Errorf("%w: %w", ErrSealed, err))
	}
	open := *m
	open.Value = body
	open.Headers = slices.Delete(slices.Clone(m.Headers), at, at+1)
	return &open, nil
}

type unsealedBatch struct {
	unsealed
	batch BatchHandler // unsealed.next
}

// HandleBatch implements BatchHandler. Messages that do not open fail, each under its name.
func (u unsealedBatch) HandleBatch(ctx context.Context, tx Tx, msgs []*Message) error {
	open := make([]*Message, len(msgs))
	faults := make([]error, len(msgs))
	for i, m := range msgs {
		var err error
		open[i], err = u.open(m)
		faults[i] = FailMessage(m, err)
	}
	if err := errors.Join(faults...); err != nil {
		return err // the consumer calls again without them
	}
	return u.batch.HandleBatch(ctx, tx, open)
}
