package webhook

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/seal"
)

// ErrSealed means that an event's body is sealed, and that the handler has no Sealer that opens it:
// see [Unsealed]. The event is parked. Redrive it when the encryption key is there.
var ErrSealed = errors.New("webhook: the event is sealed, and no Sealer with its key was given")

// Unsealed returns a handler that opens the events of endpoints with a Sealer (Config.Sealer), and
// then calls h. Use it for a consumer of your own over a [Source]; an [Endpoint] does it for its
// Handler. An event that does not open fails with [ErrSealed], and h is not called. If s is nil,
// that is every sealed event (W22).
func Unsealed(h consumer.Handler, s *seal.Sealer) consumer.Handler {
	return func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		at := slices.IndexFunc(m.Headers, func(h consumer.Header) bool { return h.Name == parked.HeaderSealed })
		if at < 0 {
			return h(ctx, tx, m)
		}
		if s == nil {
			return consumer.Permanent(ErrSealed)
		}
		body, err := s.Open(parked.EventPlace(m.Tenant(), m.Topic, m.ID()), m.Value)
		if err != nil {
			return consumer.Permanent(fmt.Errorf("%w: %w", ErrSealed, err))
		}
		open := *m // what is parked stays sealed
		open.Value, open.Headers = body, slices.Delete(slices.Clone(m.Headers), at, at+1)
		return h(ctx, tx, &open)
	}
}

// sealStored makes what is stored of the event, once: sealed, if the endpoint has a Sealer (W22).
func (a *acceptTx) sealStored(tx *guard.Tx) {
	i := a.incomingEvent
	if i.storedHeaders != nil {
		return
	}
	if i.stored, i.storedHeaders = i.Body, i.headers; a.cfg.Sealer == nil {
		return
	}
	body, err := a.cfg.Sealer.Seal(parked.EventPlace(i.tenant, Topic(a.cfg.Name), i.messageID), i.Body)
	if err != nil {
		tx.Fail(stepSeal, err)
	}
	i.stored, i.storedHeaders = body, append(slices.Clone(i.headers), consumer.Header{Name: parked.HeaderSealed, Value: []byte("true")})
}
