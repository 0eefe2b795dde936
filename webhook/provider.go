package webhook

import "github.com/onlyonce/onlyonce/webhook/scheme"

// Provider is one way of signing webhooks: [Standard], [Stripe], [GitHub], [Shopify], [Slack], a
// declared [HMAC], one of the packages twilio, meta, graph, paypal and sns below this one, or one
// of yours, with package scheme.
type Provider interface {
	// Scheme is called once, by New. It returns the faults of the provider's own configuration.
	Scheme() (*scheme.Scheme, error)
}
