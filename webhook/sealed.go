package webhook

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/onlyonce/onlyonce/consumer"
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

// seal seals what is stored of the event, if the endpoint has a Sealer (W22).
func (i *incomingEvent) seal(s *seal.Sealer, topic string) (err error) {
	if i.stored, i.storedHeaders = i.Body, i.headers; s == nil {
		return nil
	}
	i.storedHeaders = append(slices.Clone(i.headers), consumer.Header{Name: parked.HeaderSealed, Value: []byte("true")})
	if i.stored, err = s.Seal(parked.EventPlace(i.tenant, topic, i.messageID), i.Body); err != nil {
		return fmt.Errorf("%w: sealing the event: %w", ErrStore, err)
	}
	return nil
}
