package webhook

import "github.com/onlyonce/onlyonce/webhook/scheme"

// Provider is one way of signing webhooks: [Standard], [Stripe], [GitHub], [Shopify], [Slack], a
// declared [HMAC], one of the packages twilio, meta, graph, paypal and sns below this one, or your
// own, with package scheme.
type Provider interface {
	// Scheme returns the scheme, or the faults of the provider's own configuration. New calls it
	// once.
	Scheme() (*scheme.Scheme, error)
}
