package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"

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
func Unsealed(h Handler, s *seal.Sealer) Handler {
	return func(ctx context.Context, tx Tx, m *Message) error {
		at := slices.IndexFunc(m.Headers, func(h Header) bool { return h.Name == parked.HeaderSealed })
		if at < 0 {
			return h(ctx, tx, m)
		}
		if s == nil {
			return Permanent(ErrSealed)
		}
		body, err := s.Open(parked.EventPlace(m.Tenant(), m.Topic, m.ID()), m.Value)
		if err != nil {
			return Permanent(fmt.Errorf("%w: %w", ErrSealed, err))
		}
		open := *m // what is parked stays sealed
		open.Value, open.Headers = body, slices.Delete(slices.Clone(m.Headers), at, at+1)
		return h(ctx, tx, &open)
	}
}
