package webhook

import (
	"time"

	"github.com/onlyonce/onlyonce/webhook/internal/received"
	"github.com/onlyonce/onlyonce/webhook/scheme"
)

// Stripe is https://docs.stripe.com/webhooks#verify-manually: Stripe-Signature has a time and
// signatures of scheme v1. Signatures of scheme v0 are for Stripe's own tests and never count. The
// secret is "whsec_..." as Stripe shows it. A time more than 300 s ago is refused; one in the
// future is not, as in Stripe's own libraries. ID and Type are members of the body.
type Stripe struct{}

// Scheme implements Provider.
func (Stripe) Scheme() (*scheme.Scheme, error) {
	const header = "Stripe-Signature"
	return &scheme.Scheme{
		Name: "stripe", Past: 300 * time.Second, IDSigned: true,
		Answer: 10 * time.Second, Redeliveries: 3 * 24 * time.Hour,
		SignatureHeaders: []string{header},
		Key:              scheme.RawKey(scheme.HMACSHA256),
		Read: func(f scheme.Fields) (scheme.Signed, error) {
			list, err := f.One(header)
			if err != nil {
				return scheme.Signed{}, err
			}
			written, at, found, err := timedPairs(
				header,
				list,
				pairNames{",", "t", "v1"},
				scheme.HMACSHA256,
				scheme.Hex,
				time.Second,
			)
			return scheme.Signed{Before: written + ".", Signatures: found, Time: at}, err
		},
		Event: func(_ scheme.Fields, e *scheme.Event) (err error) {
			found := received.Members(e.Body, "id", "type")
			e.Type = received.String(found["type"])
			e.ID, err = received.IDMember(found, "id")
			return err
		},
	}, nil
}
