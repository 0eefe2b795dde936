package webhook

import (
	"net/http"
	"time"
)

// Event is a verified request. Get it from a [Verifier] or from [EventOf]; one that you fill in
// yourself is no proof.
type Event struct {
	// Provider is the name of the scheme, for example "stripe".
	Provider string

	// Endpoint is the name of the [Endpoint] that received it, for a handler that serves several.
	// It is empty if the event comes from a [Verifier].
	Endpoint string

	// Tenant is the customer that the event belongs to, if there are several: from Config.Tenant,
	// or with Config.TenantSecrets the one whose secret has signed.
	Tenant string

	// ID is the same on each delivery of one event: it identifies copies. 1 to 255 visible ASCII
	// characters. It is empty only if Probe is set.
	ID string

	// IDSigned says that the signature covers ID. If it is false (GitHub, Shopify), an attacker who
	// has recorded one request can send it again under another ID, so comparing IDs does not find
	// all copies (W7). If an endpoint accepts a second body under such an ID, ID gets a suffix, a
	// "#" and a hash.
	IDSigned bool

	// Type is the event's kind, in the provider's words, for example "invoice.paid", "push" or
	// "orders/create". It is empty if the provider does not give one.
	Type string

	// Time is the time of this delivery's signature, not of the event. It is zero if the provider
	// signs no time.
	Time time.Time

	// Probe says that the provider only checks whether the endpoint answers (W13): GitHub's ping,
	// or Slack's url_verification. Answer it and do not handle it: it carries no event.
	Probe bool

	// Challenge is the text that the answer to a probe must hold. It is empty if the provider asks
	// for none (W13).
	Challenge string

	// Header has the headers that are kept (W14): Content-Type, those of the provider, and
	// Config.KeepHeaders. Values are printable ASCII. Signatures and credentials are never
	// among them, whatever the configuration.
	Header http.Header

	// Body is the bytes that were signed: the slice that was passed to Verify, or if the sender
	// signs only parts of a body that can be cut out (Amazon SNS), JSON of these parts.
	Body []byte

	// signed is a hash of what was signed, if that is not the body's bytes: several bodies can then
	// have one signature (PayPal, Twilio).
	signed []byte
}
