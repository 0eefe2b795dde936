package webhook

import (
	"errors"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/intake"
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
	return intake.Unsealed(h, s, ErrSealed)
}
