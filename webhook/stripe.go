package webhook

import "time"

// Stripe is https://docs.stripe.com/webhooks#verify-manually: Stripe-Signature has a time and
// signatures of scheme v1. Signatures of scheme v0 are for Stripe's own tests and never count. The
// secret is "whsec_..." as Stripe shows it. A time more than 300 s ago is refused; one in the
// future is not, as in Stripe's own libraries. ID and Type are members of the body.
type Stripe struct{}

// Scheme implements Provider.
func (Stripe) Scheme() (*Scheme, error) {
	const header = "Stripe-Signature"
	return &Scheme{
		Name: "stripe", Past: 300 * time.Second, IDSigned: true,
		Answer: 10 * time.Second, Redeliveries: 3 * 24 * time.Hour,
		SignatureHeaders: []string{header},
		Key:              rawKey(HMACSHA256),
		Read: func(f Fields) (Signed, error) {
			list, err := f.One(header)
			if err != nil {
				return Signed{}, err
			}
			written, at, found, err := timedPairs(header, list, "t", "v1", HMACSHA256, Hex, time.Second)
			return Signed{Before: written + ".", Signatures: found, Time: at}, err
		},
		Event: func(_ Fields, e *Event) (err error) {
			found := jsonMembers(e.Body, "id", "type")
			e.Type = jsonString(found["type"])
			e.ID, err = idMember(found, "id")
			return err
		},
	}, nil
}
