package webhook

import (
	"fmt"
	"slices"
	"time"

	"github.com/onlyonce/onlyonce/webhook/internal/received"
	"github.com/onlyonce/onlyonce/webhook/scheme"
)

// Shopify is https://shopify.dev/docs/apps/build/webhooks: X-Shopify-Hmac-Sha256, over the body
// alone. The secret is the app's client secret. ID is X-Shopify-Webhook-Id, which Shopify keeps
// when it tries again, and Type is X-Shopify-Topic. Shopify does not sign either, and no time.
//
// Subscriptions to Shopify's events have the same headers without "X-", and Shopify-Action and
// Shopify-Handle. If a request has both signatures, the one without "X-" counts, as in Shopify's
// own libraries, and so do the headers beside it.
type Shopify struct {
	// ByEvent makes ID the topic, a slash and X-Shopify-Event-Id. Set it if this endpoint has
	// several subscriptions to one topic, which then count as one. The event's id alone is not
	// enough, because Shopify sends one event under several topics. If you change it, every event
	// is a new one. Defaults to false.
	ByEvent bool

	// Topics are those that this endpoint has subscriptions to, at most 64, for example
	// "orders/paid". orders/create, orders/paid and orders/updated may have one body: an event of a
	// listed topic is known by its topic and its body together, so that each of them is handled. A
	// topic is not signed: a stranger can have each recorded body accepted once under each listed
	// topic, so let the body say what happened. A body of a topic that is not listed does not name
	// itself: see Config.SameBodies. Defaults to none.
	Topics []string
}

// Scheme implements Provider.
func (s Shopify) Scheme() (*scheme.Scheme, error) {
	if len(s.Topics) > maxTopics {
		return nil, fmt.Errorf("Shopify.Topics: lists %d topics, more than %d", len(s.Topics), maxTopics)
	}
	for i, topic := range s.Topics {
		if !received.ValidID(topic) {
			return nil, fmt.Errorf("Shopify.Topics[%d]: %q must be 1 to 255 visible ASCII characters", i, topic)
		}
	}
	s.Topics = slices.Clone(s.Topics)
	return &scheme.Scheme{
		Name: "shopify", Names: s.names,
		Answer: 5 * time.Second, Redeliveries: 2 * 24 * time.Hour,
		SignatureHeaders: []string{"X-" + shopifySignature, shopifySignature},
		KeepHeaders:      shopifyKept(),
		Key:              scheme.RawKey(scheme.HMACSHA256),
		Read: func(f scheme.Fields) (scheme.Signed, error) {
			s, err := f.Signature(shopifyFamily(f)+shopifySignature, "", scheme.HMACSHA256, scheme.Base64)
			return scheme.Signed{Signatures: []scheme.Signature{s}}, err
		},
		Event: func(f scheme.Fields, e *scheme.Event) (err error) {
			family := shopifyFamily(f)
			if e.Type, err = f.ID(family + "Shopify-Topic"); err != nil {
				return err
			}
			if !s.ByEvent {
				e.ID, err = f.ID(family + "Shopify-Webhook-Id")
				return err
			}
			id, err := f.ID(family + "Shopify-Event-Id")
			e.ID = e.Type + "/" + id
			return err
		},
	}, nil
}

const maxTopics = 64

// names is Shopify's Scheme.Names.
func (s Shopify) names(topic string, body []byte) (by string, named bool) {
	if !slices.Contains(s.Topics, topic) {
		return "", false
	}
	return topic, hasMember(body, shopifyNames()[topic])
}

const shopifySignature = "Shopify-Hmac-Sha256"

// shopifyFamily returns what a request's headers have in front of their names.
func shopifyFamily(f scheme.Fields) string {
	if f.Has(shopifySignature) {
		return ""
	}
	return "X-"
}

func shopifyKept() (all []string) {
	for _, name := range []string{"Topic", "Shop-Domain", "API-Version", "Webhook-Id", "Event-Id", "Triggered-At"} {
		all = append(all, "X-Shopify-"+name, "Shopify-"+name)
	}
	return append(all, "Shopify-Action", "Shopify-Handle")
}
