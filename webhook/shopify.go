package webhook

import (
	"time"

	"github.com/onlyonce/onlyonce/webhook/scheme"
)

// Shopify is https://shopify.dev/docs/apps/build/webhooks: X-Shopify-Hmac-Sha256, over the body
// alone. The secret is the app's client secret. ID is X-Shopify-Webhook-Id, which Shopify keeps
// when it tries again, and Type is X-Shopify-Topic. Shopify does not sign either, and no time.
type Shopify struct {
	// ByEvent makes ID the topic, a slash and X-Shopify-Event-Id. Set it if this endpoint has
	// several subscriptions to one topic, which then count as one. The event's id alone is not
	// enough, because Shopify sends one event under several topics. If you change it, every event
	// is a new one. Defaults to false.
	ByEvent bool
}

// Scheme implements Provider.
func (s Shopify) Scheme() (*scheme.Scheme, error) {
	const header = "X-Shopify-Hmac-Sha256"
	return &scheme.Scheme{
		Name: "shopify", Distinct: true,
		Answer: 5 * time.Second, Redeliveries: 2 * 24 * time.Hour,
		SignatureHeaders: []string{header},
		KeepHeaders: []string{"X-Shopify-Topic", "X-Shopify-Shop-Domain", "X-Shopify-API-Version", "X-Shopify-Webhook-Id",
			"X-Shopify-Event-Id", "X-Shopify-Triggered-At"},
		Key: scheme.RawKey(scheme.HMACSHA256),
		Read: func(f scheme.Fields) (scheme.Signed, error) {
			s, err := f.Signature(header, "", scheme.HMACSHA256, scheme.Base64)
			return scheme.Signed{Signatures: []scheme.Signature{s}}, err
		},
		Event: func(f scheme.Fields, e *scheme.Event) (err error) {
			if e.Type, err = f.ID("X-Shopify-Topic"); err != nil {
				return err
			}
			if !s.ByEvent {
				e.ID, err = f.ID("X-Shopify-Webhook-Id")
				return err
			}
			id, err := f.ID("X-Shopify-Event-Id")
			e.ID = e.Type + "/" + id
			return err
		},
	}, nil
}
